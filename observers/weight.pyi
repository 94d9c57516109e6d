from collections.abc import Sequence

from observers.api import ObservedExchange

def weight_of(exchanges: Sequence[ObservedExchange]) -> int: ...
