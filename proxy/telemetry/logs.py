"""Logging: one JSON object a line, on stderr, written by a thread of its own (``log_writer``).

Whatever a peer chose (a client id, a topic) may end up in a line. So text is escaped and cut, containers are bounded,
and values whose key looks like a secret are never written.
"""

from __future__ import annotations

import atexit
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from proxy.telemetry.log_writer import LogStream, LogWriter

MAX_TEXT = 256
"""Characters of one text in a log line; longer ones are cut, with ``…`` before the last ``END`` of them."""

END = 32
"""An error of the configuration tells at its end where it is."""

MAX_ITEMS = 32
"""Items of a list or mapping in a log line; the rest is left out."""

MAX_DEPTH = 3
"""Lists and mappings inside each other; what is deeper is written as text."""

MAX_FRAMES = 16
"""Innermost frames of an exception's traceback in a log line."""

STDERR = 2

EXIT_PATIENCE = 1.0
"""Seconds that the end of the process waits for its last lines to be written; a reader may never take them."""

REPEAT_INTERVAL = 1.0
"""Seconds between two lines of the same event from a ``Repeated``."""

_SECRET = re.compile(r"passw|passphrase|token|secret|credential|authorization|^sasl", re.IGNORECASE)
_FIRST = ("timestamp", "level", "logger", "event")


class _Logger:
    """What structlog calls with a finished line: one method for each level. ``name``: for ``add_logger_name``."""

    def __init__(self, writer: LogWriter, name: str) -> None:
        self._writer = writer
        self.name = name

    def debug(self, line: str) -> None:
        self._writer.put("debug", line)

    def info(self, line: str) -> None:
        self._writer.put("info", line)

    def warning(self, line: str) -> None:
        self._writer.put("warning", line)

    def error(self, line: str) -> None:
        self._writer.put("error", line)

    def critical(self, line: str) -> None:
        self._writer.put("critical", line)


class _Handler(logging.Handler):
    """The same for the standard library's lines."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put(record.levelname.lower(), self.format(record))
        except Exception:
            self.handleError(record)


_writers: list[LogWriter] = []  # of this process: none before the first ``configure_logging``, then one


def _writer() -> LogWriter:
    """The process's one writer. From its first use on, all that is printed goes through it, to stderr, too."""
    if not _writers:
        writer = LogWriter(STDERR, _lines_dropped)
        streams = LogStream(writer, "info"), LogStream(writer, "error")
        _writers.append(writer)
        sys.stdout, sys.stderr = streams

        def finish() -> None:
            for stream in streams:
                stream.end_line()
            writer.flush(EXIT_PATIENCE)

        atexit.register(finish)
    return _writers[0]


def _lines_dropped(dropped: Mapping[str, int]) -> None:
    structlog.get_logger(__name__).warning("log_lines_dropped", **dropped)


def flush_log() -> None:
    """Wait up to ``EXIT_PATIENCE`` seconds until all lines are written; for a process that is about to end."""
    for writer in _writers:
        writer.flush(EXIT_PATIENCE)


def log_lines_dropped() -> dict[str, int]:
    """Lines of this process that were dropped since its start, by level."""
    return _writers[0].dropped() if _writers else {}


def configure_logging(level: str, **always: object) -> None:
    """Log lines of at least ``level`` (debug, info, warning, error) to stderr, the standard library's and warnings too.

    ``always``: keys that every line has. No call that logs or prints ever waits from then on.
    """

    def add_always(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
        return {**line, **always}

    number = logging.getLevelNamesMapping()[level.upper()]
    writer = _writer()
    describe: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        exceptions_as_values,
        add_always,
    ]
    finish: list[Processor] = [clean, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=describe + finish,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *args: _Logger(writer, str(args[0]) if args else "brokerside"),
    )
    handler = _Handler(writer)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=describe,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
        )
    )
    # Libraries below us say little that matters under a warning, and asyncio's debug lines are a flood.
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    logging.captureWarnings(True)


def exceptions_as_values(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Replace ``exc_info`` by ``error`` (type and text) and ``trace`` (places in code, innermost last)."""
    given = line.pop("exc_info", None)
    if given:
        error = (
            given if isinstance(given, BaseException) else given[1] if isinstance(given, tuple) else sys.exc_info()[1]
        )
        if error is not None:
            line["error"] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
            line["trace"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return line


def clean(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Escape, cut and redact every value; put the keys every line has first."""
    ordered = [key for key in _FIRST if key in line] + [key for key in line if key not in _FIRST]
    return {_text(key): _value(key, line[key], MAX_DEPTH) for key in ordered}


def _value(key: str, value: Any, depth: int) -> Any:
    if key not in _FIRST and _SECRET.search(key):
        return "***"
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth and isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {_text(str(name)): _value(str(name), item, depth - 1) for name, item in items}
    if depth and isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes | bytearray):
        return [_value("", item, depth - 1) for item in list(value)[:MAX_ITEMS]]
    return _text(value if isinstance(value, str) else str(value))


def _text(text: str) -> str:
    """Return ``text`` without control characters, neither terminal escapes nor line ends, and cut."""
    cut = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - END - 1]}…{text[-END:]}"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


class Warns(Protocol):
    """A logger, as far as ``Repeated`` needs one."""

    def warning(self, event: str, **keys: Any) -> Any:
        """Log ``event`` as a warning."""


class Repeated:
    """Logs each event at most once in ``REPEAT_INTERVAL`` seconds, and counts those in between.

    A line with ``repeated: n`` stands for n occurrences since the line before; its other keys are those of the last.
    Events are told apart by name alone, so that what peers choose cannot make the memory of it grow.
    """

    def __init__(self, log: Warns, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next_at: dict[str, float] = {}
        self._held: dict[str, tuple[int, dict[str, Any]]] = {}

    def warning(self, event: str, **keys: Any) -> None:
        """Log ``event``, or count it where it was logged just before."""
        now = self._clock()
        count, _ = self._held.pop(event, (0, {}))
        if now < self._next_at.get(event, now):
            self._held[event] = (count + 1, keys)
            return
        self._next_at[event] = now + REPEAT_INTERVAL
        self._write(event, count + 1, keys)

    def flush(self) -> None:
        """Log what was held back and is due: call it now and then, else the last of a burst stay untold."""
        now = self._clock()
        for event in [event for event in self._held if now >= self._next_at[event]]:
            count, keys = self._held.pop(event)
            self._next_at[event] = now + REPEAT_INTERVAL
            self._write(event, count, keys)

    def _write(self, event: str, count: int, keys: dict[str, Any]) -> None:
        if count > 1:
            keys = {**keys, "repeated": count}
        self._log.warning(event, **keys)
