"""Errors of a consumer while it runs. A wrong argument is a LocalError."""

from __future__ import annotations

from proxy.errors import BrokersideError


class ConsumerFailed(BrokersideError):
    """The consumer cannot be in its group, or has left it because of an error. It is of no further use."""


class CommitRefused(BrokersideError):
    """The offsets were not committed, or may not have been. The messages may be handed out again, also elsewhere."""
