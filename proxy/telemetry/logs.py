"""Logging: one line of JSON or text for each event on stderr, written by a separate thread (``log_writer``).

Text that a peer chooses, such as a client id or a topic, may be in a line. So text is escaped and cut, containers are
bounded, and values whose key suggests a secret are never written.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from proxy.telemetry.log_writer import LogStream, LogWriter
from proxy.telemetry.text_log import render_text

MAX_TEXT_LENGTH = 256
"""Characters of one text in a log line. A longer one keeps its beginning and its last ``KEPT_TAIL_LENGTH``
characters."""

KEPT_TAIL_LENGTH = 32
"""Characters kept at the end of a cut text. An error of the configuration has its location there."""

MAX_LOGGED_ITEMS = 32
"""Items of a list or mapping in a log line. The rest is left out."""

MAX_DEPTH = 3
"""Nesting of lists and mappings. What is nested deeper is written as text."""

MAX_FRAMES = 16
"""Innermost frames of an exception's traceback in a log line."""

STDERR = 2

EXIT_FLUSH_TIMEOUT = 1.0
"""Seconds that an exiting process waits for its last lines to be written. The reader may never accept them."""

REPEAT_INTERVAL = 1.0
"""Seconds between two lines of the same event from a ``RateLimitedLogger``."""

_SECRET_KEY = re.compile(r"passw|passphrase|token|secret|credential|authorization|^sasl", re.IGNORECASE)
_LEADING_KEYS = ("timestamp", "level", "logger", "event")


class _LineLogger:
    """The logger behind structlog, with a method for each level. ``name``: for ``add_logger_name``."""

    def __init__(self, writer: LogWriter, name: str) -> None:
        self._writer = writer
        self.name = name

    def debug(self, line: str) -> None:
        self._writer.enqueue("debug", line)

    def info(self, line: str) -> None:
        self._writer.enqueue("info", line)

    def warning(self, line: str) -> None:
        self._writer.enqueue("warning", line)

    def error(self, line: str) -> None:
        self._writer.enqueue("error", line)

    def critical(self, line: str) -> None:
        self._writer.enqueue("critical", line)


class _LineHandler(logging.Handler):
    """The handler of the standard library's log records."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.enqueue(record.levelname.lower(), self.format(record))
        except Exception:
            self.handleError(record)


_writers: list[LogWriter] = []  # empty before the first ``configure_logging``, then the only one


def _writer() -> LogWriter:
    """Return the process's only writer. From its first use on, all printed text goes through it to stderr."""
    if not _writers:
        writer = LogWriter(STDERR, _log_dropped_lines)
        streams = LogStream(writer, "info"), LogStream(writer, "error")
        _writers.append(writer)
        sys.stdout, sys.stderr = streams

        def finish() -> None:
            for stream in streams:
                stream.flush_partial_line()
            writer.flush(EXIT_FLUSH_TIMEOUT)

        atexit.register(finish)
    return _writers[0]


def _log_dropped_lines(dropped: Mapping[str, int]) -> None:
    structlog.get_logger(__name__).warning("log_lines_dropped", **dropped)


def flush_log() -> None:
    """Wait up to ``EXIT_FLUSH_TIMEOUT`` seconds until all lines are written. For a process that is about to exit."""
    for writer in _writers:
        writer.flush(EXIT_FLUSH_TIMEOUT)


def log_lines_dropped() -> dict[str, int]:
    """Return the lines that this process has dropped since its start, by level."""
    return _writers[0].dropped() if _writers else {}


def configure_logging(level: str, form: str = "auto", **constant_keys: object) -> None:
    """Log to stderr from ``level`` (debug, info, warning, error) on, including the standard library's log and warnings.

    ``form``: ``json``, ``text``, or ``auto``: text where stderr is a terminal. ``constant_keys``: keys of every line.
    From then on no call that logs or prints blocks.
    """

    def add_constant_keys(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
        return {**line, **constant_keys}

    number = logging.getLevelNamesMapping()[level.upper()]
    writer = _writer()
    describe: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        exceptions_as_values,
        add_constant_keys,
    ]
    as_text = form == "text" or (form == "auto" and os.isatty(STDERR))
    finish: list[Processor] = [sanitize, render_text if as_text else structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=describe + finish,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *args: _LineLogger(writer, str(args[0]) if args else "brokerside"),
    )
    handler = _LineHandler(writer)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=describe,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
        )
    )
    # Libraries log little of interest below warnings, and asyncio logs too much at the level debug.
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    logging.captureWarnings(True)


def exceptions_as_values(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Replace ``exc_info`` by ``error`` (type and text) and ``trace`` (code locations, innermost last)."""
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


def sanitize(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Escape, cut and redact all values, and put the common keys first."""
    ordered = [key for key in _LEADING_KEYS if key in line] + [key for key in line if key not in _LEADING_KEYS]
    return {_sanitize_text(key): _sanitize_value(key, line[key], MAX_DEPTH) for key in ordered}


def _sanitize_value(key: str, value: Any, depth: int) -> Any:
    if key not in _LEADING_KEYS and _SECRET_KEY.search(key):
        return "***"
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth and isinstance(value, Mapping):
        items = list(value.items())[:MAX_LOGGED_ITEMS]
        return {_sanitize_text(str(name)): _sanitize_value(str(name), item, depth - 1) for name, item in items}
    if depth and isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes | bytearray):
        return [_sanitize_value("", item, depth - 1) for item in list(value)[:MAX_LOGGED_ITEMS]]
    return _sanitize_text(value if isinstance(value, str) else str(value))


def _sanitize_text(text: str) -> str:
    """Return ``text`` cut and without control characters, such as terminal escapes and line ends."""
    cut = (
        text
        if len(text) <= MAX_TEXT_LENGTH
        else f"{text[: MAX_TEXT_LENGTH - KEPT_TAIL_LENGTH - 1]}…{text[-KEPT_TAIL_LENGTH:]}"
    )
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


class WarningLogger(Protocol):
    """The part of a logger that ``RateLimitedLogger`` needs."""

    def warning(self, event: str, **keys: Any) -> Any:
        """Log ``event`` as a warning."""


class RateLimitedLogger:
    """Logs each event at most once in ``REPEAT_INTERVAL`` seconds, and counts the others.

    A line with ``repeated: n`` stands for n occurrences since the line before, and has the keys of the last one. Events
    are identified by their name alone, so that peers cannot make the memory grow.
    """

    def __init__(self, log: WarningLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next_at: dict[str, float] = {}
        self._suppressed: dict[str, tuple[int, dict[str, Any]]] = {}

    def warning(self, event: str, **keys: Any) -> None:
        """Log ``event``, or count it if it was logged less than ``REPEAT_INTERVAL`` seconds ago."""
        now = self._clock()
        count, _ = self._suppressed.pop(event, (0, {}))
        if now < self._next_at.get(event, now):
            self._suppressed[event] = (count + 1, keys)
            return
        self._next_at[event] = now + REPEAT_INTERVAL
        self._write(event, count + 1, keys)

    def flush(self) -> None:
        """Log suppressed events whose interval is over. Has to be called regularly, or the last ones of a burst are
        missing."""
        now = self._clock()
        for event in [event for event in self._suppressed if now >= self._next_at[event]]:
            count, keys = self._suppressed.pop(event)
            self._next_at[event] = now + REPEAT_INTERVAL
            self._write(event, count, keys)

    def _write(self, event: str, count: int, keys: dict[str, Any]) -> None:
        if count > 1:
            keys = {**keys, "repeated": count}
        self._log.warning(event, **keys)
