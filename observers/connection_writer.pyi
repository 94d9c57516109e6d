from collections.abc import Sequence

from observers.api import ConnectionChange
from observers.audit_filter import AuditFilter
from observers.event_blocks import EncodedEvents

def encode_connection_changes(
    changes: Sequence[ConnectionChange], first: int, wall_offset: float, audit_filter: AuditFilter
) -> EncodedEvents:
    """Return the events of ``changes``, numbered from ``first`` on. Changes of excluded principals are hidden.

    ``wall_offset``: seconds to add to their times to get seconds since the epoch.
    """
