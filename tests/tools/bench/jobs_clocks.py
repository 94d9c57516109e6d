"""Clocks in the Python of a job: CPU seconds of its threads, by what they do.

Threads of Python workers and of the driver each write what they used to a file of one folder, when a task ends or a
function returns. A record has some 200 events, and some five readings of a clock: they cost nothing.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import json

from spark_jobs import batch, decode, io, parse, partial_rows
from spark_jobs.decode import DecodeOptions, RecordDecoder


class Stopwatch:
    """CPU seconds of one thread by what it does. Work inside of other work counts only as itself."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._work, self._since = "", time.thread_time()

    def timed(self, work: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, whose CPU counts as ``work``."""

        def wrapper(*arguments: Any) -> Any:
            before = self._begin(work)
            try:
                return function(*arguments)
            finally:
                self._begin(before)

        return wrapper

    def iterated(self, work: str, items: Iterable[Any]) -> Iterator[Any]:
        """Yield ``items``; the CPU to get each of them counts as ``work``."""
        step = self.timed(work, partial(next, iter(items), None))
        while (item := step()) is not None:
            yield item

    def write(self, folder: str) -> None:
        self.spent.pop("", None)
        Path(folder, uuid.uuid4().hex).write_bytes(json.encode(self.spent))

    def _begin(self, work: str) -> str:
        now, before = time.thread_time(), self._work
        self.spent[before] += now - self._since
        self._work, self._since = work, now
        return before


def install(folder: str) -> None:
    """Let the jobs of this process write their clocks to ``folder``, which exists."""
    named: Any = batch
    named.decode_records = partial(_decode_records, folder=folder)
    named.merge_sorted = partial(_merge_sorted, folder=folder)
    named.table_rows = _timed("tables", partial_rows.table_rows, folder)
    io.append_once = _timed("commit", io.append_once, folder)


def take(folder: str) -> dict[str, float]:
    """Return the sums of all clocks in ``folder``, and remove them."""
    total: defaultdict[str, float] = defaultdict(float)
    for path in Path(folder).iterdir():
        for work, seconds in json.decode(path.read_bytes(), type=dict[str, float]).items():
            total[work] += seconds
        path.unlink()
    return total


def _timed(work: str, function: Callable[..., Any], folder: str) -> Callable[..., Any]:
    def wrapper(*arguments: Any) -> Any:
        watch = Stopwatch()
        try:
            return watch.timed(work, function)(*arguments)
        finally:
            watch.write(folder)

    return wrapper


def _decode_records(batches: Iterable[pa.RecordBatch], options: DecodeOptions, folder: str) -> Iterator[pa.RecordBatch]:
    watch, take_rows = Stopwatch(), RecordDecoder.take
    replaced = {
        (decode, "parse_record"): watch.timed("decode", parse.parse_record),
        (decode, "digests_of"): watch.timed("digests", parse.digests_of),
        (RecordDecoder, "__len__"): watch.timed("size", RecordDecoder.__len__),
        (RecordDecoder, "take"): lambda decoder: watch.iterated("rows", take_rows(decoder)),
    }
    with _replaced(replaced):
        yield from watch.iterated("sums", decode.decode_records(watch.iterated("", batches), options))
    watch.write(folder)


def _merge_sorted(batches: Iterable[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    watch = Stopwatch()
    yield from watch.iterated("merge", partial_rows.merge_sorted(watch.iterated("", batches)))
    watch.write(folder)


@contextmanager
def _replaced(functions: dict[tuple[Any, str], Callable[..., Any]]) -> Iterator[None]:
    before = {(owner, name): getattr(owner, name) for owner, name in functions}
    for (owner, name), function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name), function in before.items():
            setattr(owner, name, function)
