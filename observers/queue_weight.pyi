from collections.abc import Sequence

from observers.api import ObservedExchange

def queue_weight(exchanges: Sequence[ObservedExchange]) -> tuple[int, int]: ...
