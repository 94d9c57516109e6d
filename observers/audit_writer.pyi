from collections.abc import Mapping, Sequence

from observers.api import ObservedExchange
from observers.batch import Translation
from observers.scope import Scope
from observers.topics import TopicNames

class Translator:
    def __init__(
        self, api_names: Mapping[int, str], names: TopicNames, scope: Scope, *, max_event: int = ...
    ) -> None: ...
    def translate(self, exchanges: Sequence[ObservedExchange], first: int, wall_offset: float) -> Translation: ...
