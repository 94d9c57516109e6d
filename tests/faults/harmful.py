"""Observers that do harm, and one that looks on: named in tests as ``tests.faults.harmful:Class``."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from observers.api import ObservableStruct, ObservedExchange


class Quiet:
    def configure(self, configs: Mapping[str, Any]) -> None:
        return

    def close(self, timeout: float) -> None:
        return


class Witness(Quiet):
    """Does nothing, well."""

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        return


class Reader(Quiet):
    """A KIP-388 observer that does nothing, well."""

    def record_request(self, struct, client_address, principal, api_key, api_version, correlation_id):
        return

    def record_response(self, struct: ObservableStruct, api_version: int, correlation_id: str) -> None:
        return


class Raiser(Reader):
    """Raises in each call, each time something else."""

    def __init__(self) -> None:
        kinds = (SystemExit, KeyboardInterrupt, asyncio.CancelledError, MemoryError, GeneratorExit, RuntimeError)
        self._errors: Iterator[type[BaseException]] = cycle([*kinds, RecursionError])

    def record_request(self, *args: Any) -> None:
        error = next(self._errors)
        if error is RecursionError:
            recurse()
        raise error

    def record_response(self, *args: Any) -> None:
        self.record_request()


def recurse() -> None:
    """Use the stack up."""
    recurse()


class Faulty(Witness):
    """Raises in each call while a file exists, whose path is its setting ``while``."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        self._file = Path(configs["settings"]["while"])

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        if self._file.exists():
            raise RuntimeError("as the test wants it")


class Sleeper(Witness):
    """Never returns from its first call."""

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        threading.Event().wait()

    def close(self, timeout: float) -> None:
        threading.Event().wait()


class Burner(Witness):
    """Never returns either, and uses the processor meanwhile."""

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        while True:
            sum(range(1000))


class Hoarder(Reader):
    """Keeps whatever it is given, and views of all bytes in it."""

    def __init__(self) -> None:
        self._hoard: list[Any] = []

    def record_request(self, struct: ObservableStruct, *args: Any) -> None:
        self._hoard.append((struct, *args))
        if struct.has_field("topic_data"):
            for topic in struct.get_observable_struct_array("topic_data"):
                for partition in topic.get_observable_struct_array("data"):
                    records = partition.get_records("record_set")
                    self._hoard += [partition, records, records.data]

    def record_response(self, struct: ObservableStruct, *args: Any) -> None:
        self._hoard.append((struct, *args))


class Vandal(Witness):
    """Tries to change everything it is given."""

    def keeps(self, api_key: int, api_version: int) -> bool:
        return True

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        for exchange in exchanges:
            for thing in (exchange, exchange.connection, exchange.request, exchange.response):
                vandalise(thing)
            for facts in (exchange.request, exchange.response):
                for partition in getattr(facts, "partitions", ()):
                    vandalise(partition)
            for body in (exchange.request_raw, exchange.response_raw):
                overwrite(body)


class VandalReader(Reader):
    """The same through structs; raises once it has changed anything."""

    def record_request(self, struct: ObservableStruct, *args: Any) -> None:
        assert not vandalise(struct)
        if struct.has_field("topic_data"):
            for topic in struct.get_observable_struct_array("topic_data"):
                assert not vandalise(topic)
                for partition in topic.get_observable_struct_array("data"):
                    records = partition.get_records("record_set")
                    assert not vandalise(partition)
                    assert not vandalise(records)
                    assert not overwrite(records.data)

    def record_response(self, struct: ObservableStruct, *args: Any) -> None:
        assert not vandalise(struct)


def vandalise(thing: Any) -> bool:
    """Set and delete all attributes of ``thing``; return whether any of it worked."""
    done = False
    for name in [name for name in dir(thing) if not name.startswith("__")]:
        for harm in (partial(setattr, thing, name, None), partial(delattr, thing, name)):
            try:
                harm()
                done = True
            except (AttributeError, TypeError):
                pass
    return done


def overwrite(body: Any) -> bool:
    """Write into ``body``; return whether that worked."""
    try:
        memoryview(body)[0:1] = b"!"
    except TypeError:
        return False
    return True
