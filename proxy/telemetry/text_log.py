"""Log lines for people: time, level, event, then the other keys as ``key=value``."""

from __future__ import annotations

import re

import msgspec
from structlog.typing import EventDict, WrappedLogger

LEVEL_WIDTH, EVENT_WIDTH = 7, 22
"""Characters to which levels and events are padded, so that lines can be scanned."""

_PLAIN = re.compile(r'[^\s"=]+')
_HEAD = ("timestamp", "level", "logger", "event")


def render_text(logger: WrappedLogger, method: str, line: EventDict) -> str:
    """Return one line: ``2026-11-24 07:05:01.123Z info    listening  listener=CLIENT``. Times are UTC.

    ``line`` is sanitized already: no text in it controls a terminal. The key ``logger`` is left out.
    """
    at = str(line.get("timestamp", "")).replace("T", " ", 1).removesuffix("Z")[:23]
    rest = "  ".join(f"{key}={_value(value)}" for key, value in line.items() if key not in _HEAD)
    head = f"{at}Z {line.get('level', ''):<{LEVEL_WIDTH}} {line.get('event', ''):<{EVENT_WIDTH}}"
    return f"{head} {rest}".rstrip()


def _value(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return msgspec.json.encode(value, enc_hook=str).decode()
