from collections.abc import Mapping, Sequence

from observers.api import ObservedExchange
from observers.audit_filter import AuditFilter
from observers.event import RollupEvent
from observers.rollup import RollupProgress
from observers.topic_names import TopicNames

class RollupAggregator:
    def __init__(
        self,
        api_names: Mapping[int, str],
        names: TopicNames,
        audit_filter: AuditFilter,
        *,
        max_rollups: int = ...,
        max_topics: int = ...,
    ) -> None: ...
    @property
    def requests(self) -> int: ...
    @property
    def full(self) -> bool: ...
    def add_exchanges(
        self, exchanges: Sequence[ObservedExchange], start: int, wall_offset: float
    ) -> RollupProgress: ...
    def drain(self) -> list[RollupEvent]: ...

class ExchangeDivider:
    def divide(self, exchanges: Sequence[ObservedExchange]) -> list[tuple[bool, Sequence[ObservedExchange]]]: ...
