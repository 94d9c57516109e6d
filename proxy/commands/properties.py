"""Files of settings as Kafka's own tools take them (``--command-config``): Java's properties."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from proxy.errors import LocalError

_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_KEY = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_SIGNS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings in ``path``, as ``java.util.Properties`` reads them; the last of a name counts.

    Raises LocalError, which never shows what a line says: it may be a password.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LocalError(f"{path} cannot be read: it is not text in UTF-8") from None
    settings = {}
    for number, line in _lines(text):
        key = _KEY.match(line)
        assert key
        name = _plain(key[1])
        if not name or key.end() == len(key[1]):
            raise LocalError(f"{path}: line {number}: must be NAME=VALUE")
        settings[name] = _plain(line[key.end() :])
    return settings


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Give each setting with the number of its first line: comments left out, lines joined that end in a backslash."""
    started, whole = 0, ""
    for number, part in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = part.lstrip(" \t\f")
        if not whole and (not line or line[0] in "#!"):
            continue
        started = started if whole else number
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        whole += line[:-1] if goes_on else line
        if not goes_on:
            yield started, whole
            whole = ""
    if whole:
        yield started, whole


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else _SIGNS.get(found[2], found[2]), text)
