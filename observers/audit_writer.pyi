from collections.abc import Mapping, Sequence

from observers.api import ObservedExchange
from observers.audit_filter import AuditFilter
from observers.event_blocks import EncodedEvents
from observers.topic_names import TopicNames

class RequestEventEncoder:
    def __init__(
        self, api_names: Mapping[int, str], names: TopicNames, audit_filter: AuditFilter, *, max_event: int = ...
    ) -> None: ...
    def encode_exchanges(
        self, exchanges: Sequence[ObservedExchange], first: int, wall_offset: float
    ) -> EncodedEvents: ...
