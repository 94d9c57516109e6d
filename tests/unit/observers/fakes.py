"""Observers that do well and observers that do harm, named in tests as ``tests.unit.observers.fakes:Class``."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from observers.api import TOPIC_NAME, ConnectionChange, Context, ObservableStruct, ObservedExchange, ThrottleReport

GATE_TIMEOUT = 300
"""Seconds until a gate that a test forgot opens by itself: a busy machine may take a minute to prepare what waits."""


class Keeper:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.life: list[str] = []
        self.seen: list[ObservedExchange] = []
        self.dropped: list[int] = []
        self.threads: set[str] = set()
        self.configs: Mapping[str, Any] = {}
        self.close_timeout = -1.0

    def configure(self, configs: Mapping[str, Any]) -> None:
        self.configs = configs
        self.life.append("configure")

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        self.life.append("record")
        self.threads.add(threading.current_thread().name)
        self.seen.extend(exchanges)
        self.dropped.append(dropped)

    def close(self, timeout: float) -> None:
        self.close_timeout = timeout
        self.life.append("close")


class Second(Keeper):
    """A keeper under another name."""


class Gated(Keeper):
    """Blocks in each call until ``gate`` is set; ``entered`` is set when a call has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        self.entered.set()
        self.gate.wait(GATE_TIMEOUT)
        super().record_exchanges(exchanges, dropped)


class Thrower(Keeper):
    """Raises ``error`` in each call while it is set."""

    error: BaseException | None = RuntimeError("no")

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        self.life.append("record")
        if self.error is not None:
            raise self.error
        super().record_exchanges(exchanges, dropped)


class NeedsArguments:
    def __init__(self, path: str) -> None:
        self.path = path


class Shapeless:
    """Neither of the two shapes."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        return


not_a_class = 5


class ByteCounts:
    """KIP-388's example, line by line: bytes produced and fetched, by topic."""

    def __init__(self) -> None:
        self.produced: dict[str, int] = {}
        self.fetched: dict[str, int] = {}
        self.open: dict[str, int] = {}
        self.correlations: list[str] = []
        self.clients: set[tuple[str, str]] = set()

    def configure(self, configs: Mapping[str, Any]) -> None:
        return

    def record_request(self, struct, client_address, principal, api_key, api_version, correlation_id):
        self.correlations.append(correlation_id)
        self.clients.add((client_address, principal))
        self.open[correlation_id] = api_key
        if api_key == 0:
            for topic_data in struct.get_observable_struct_array("topic_data"):
                topic = topic_data.get(TOPIC_NAME)
                for partition in topic_data.get_observable_struct_array("data"):
                    size = partition.get_records("record_set").size_in_bytes()
                    self.produced[topic] = self.produced.get(topic, 0) + size

    def record_response(self, struct: ObservableStruct, api_version: int, correlation_id: str) -> None:
        if self.open.pop(correlation_id) == 1:
            for topic_data in struct.get_observable_struct_array("responses"):
                topic = topic_data.get(TOPIC_NAME)
                for partition in topic_data.get_observable_struct_array("partition_responses"):
                    size = partition.get_records("record_set").size_in_bytes()
                    self.fetched[topic] = self.fetched.get(topic, 0) + size

    def close(self, timeout: float) -> None:
        return


class Watcher(Keeper):
    """Keeps exchanges, changes of connections and reports in the order in which it gets them."""

    def record_changes(self, changes: Sequence[ConnectionChange], dropped: int) -> None:
        self.life.append("changes")
        self.seen.extend(changes)  # type: ignore[arg-type]
        self.dropped.append(dropped)

    def record_throttles(self, reports: Sequence[ThrottleReport], dropped: int) -> None:
        self.life.append("throttles")
        self.seen.extend(reports)  # type: ignore[arg-type]
        self.dropped.append(dropped)


class GatedWatcher(Gated, Watcher):
    """Blocks in calls about exchanges."""


class BadHalf(ByteCounts):
    """Raises for every response."""

    def record_response(self, struct: ObservableStruct, api_version: int, correlation_id: str) -> None:
        raise RuntimeError("no")


class Curious(ByteCounts):
    """Wants what there is to know besides, and is closed as in Java."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts: list[Context] = []
        self.unit = ""

    def record_request(self, *args: Any, context: Context) -> None:  # type: ignore[override]
        self.contexts.append(context)

    def record_response(self, struct: ObservableStruct, api_version: int, correlation_id: str, **more: Any) -> None:
        self.contexts.append(more["context"])

    def close(self, timeout: float, unit: str) -> None:  # type: ignore[override]  # as KIP-388 has it
        self.unit = unit


class Picky(Keeper):
    """Wants Metadata alone, and of what Kafka does not have api key 20000; keeps no bodies."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []

    def wants(self, api_key: int, api_version: int) -> bool:
        self.asked.append((api_key, api_version))
        return api_key in (3, 20_000)


class PickyReader(ByteCounts):
    """A KIP-388 observer that wants Fetch since version 4 alone."""

    def wants(self, api_key: int, api_version: int) -> bool:
        return api_key == 1 and api_version >= 4


class Sparing(ByteCounts):
    """Wants everything and the bodies of Metadata alone."""

    def keeps(self, api_key: int, api_version: int) -> bool:
        return api_key == 3


class TooManyArguments(Keeper):
    def record_exchanges(self, exchanges: Sequence[Any], dropped: int, more: int) -> None:  # type: ignore[override]
        return


class Asynchronous(Keeper):
    async def record_exchanges(self, exchanges: Sequence[Any], dropped: int) -> None:  # type: ignore[override]
        return


class GatedReader(ByteCounts):
    """A KIP-388 observer that blocks in each call until ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()

    def record_request(self, *args: Any) -> None:
        self.entered.set()
        self.gate.wait(GATE_TIMEOUT)
        super().record_request(*args)


class RefusesSettings(Keeper):
    """Takes no settings."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        super().configure(configs)
        if "top" in configs["settings"]:
            raise ValueError(f"top is {configs['settings']['top']}")


class Numbering(Keeper):
    """Has a counter of its own for what the data path hands over, as the audit observer has."""

    def __init__(self) -> None:
        super().__init__()
        self.observed = memoryview(bytearray(8)).cast("q")


class Follower(Keeper):
    """Keeps the levels it gets, and raises ``error`` instead while it is set."""

    error: BaseException | None = None

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[Mapping[str, int]] = []

    def finalized_levels(self, levels: Mapping[str, int]) -> None:
        self.life.append("levels")
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        self.levels.append(levels)


class GatedFollower(Gated, Follower):
    """Blocks in calls about exchanges."""
