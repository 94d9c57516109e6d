"""Java's regular expressions and replacements, for Python's ``re``.

What means the same in both is taken as it is, and what is written differently is translated. What Python does not have,
or reads in another way, is refused: a rule that means one name to the broker and another one here would be a disguise.

Source: ``java.util.regex.Pattern`` and ``Matcher.appendReplacement`` of Java 17.
"""

from __future__ import annotations

import re

ANY_CHARACTER = r"[^\n\r\x85\u2028\u2029]"
"""Java's ``.``, which ends at more line terminators than Python's."""

AT_END = r"(?=(?:\r\n|[\n\r\x85\u2028\u2029])?\Z)"
"""Java's ``$``: the end, or before a line terminator at the end."""

_SAME_ESCAPES = "tnrfadDwWsS"
_QUANTIFIER = re.compile(r"\{\d+(?:,\d*)?\}")
_GROUP = re.compile(r"\(\?(?:(?P<name><[a-zA-Z][a-zA-Z0-9]*>)|(?P<same>[:=!>]|<[=!]|[is]*(?:-[is]+)?[:)]))")
_HEXADECIMAL = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x\{([0-9a-fA-F]{1,6})\})")
_NUMBERED, _NAMED = re.compile(r"\\[1-9](?![0-9])"), re.compile(r"\\k<([a-zA-Z][a-zA-Z0-9]*)>")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)


def compile_pattern(java: str) -> re.Pattern[str]:
    """Return a pattern of Java as one of Python. Raises ValueError."""
    try:
        return re.compile(_Translator(java).translated(), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"pattern {java!r}: {error}") from None


class _Translator:
    def __init__(self, java: str) -> None:
        self._java = java
        self._at = 0
        self._dot = "." if re.match(r"\(\?i?si?\)", java) else ANY_CHARACTER

    def translated(self) -> str:
        parts = []
        while self._at < len(self._java):
            parts.append(self._next())
        return "".join(parts)

    def _next(self) -> str:
        character = self._java[self._at]
        if character == "\\":
            return self._escape(in_class=False)
        if character == "[":
            return self._class()
        if character == "(" and self._java.startswith("(?", self._at):
            found = self._take(_GROUP)
            if "s" in (found["same"] or "") and found.start():
                raise self._refused("the flag s, but at the beginning")
            return f"(?P{found['name']}" if found["name"] else found[0]
        if character == "{":
            return self._take(_QUANTIFIER)[0]
        self._at += 1
        return {".": self._dot, "$": AT_END}.get(character, character)

    def _class(self) -> str:
        begin = re.compile(r"\[\^?").match(self._java, self._at)
        assert begin is not None
        self._at = begin.end()
        parts = [begin[0]]
        while self._at < len(self._java):
            here = self._java[self._at]
            if here == "[" or self._java[self._at : self._at + 2] in ("&&", "--", "~~", "||"):
                raise self._refused("classes in classes")
            if here == "\\":
                parts.append(self._escape(in_class=True))
                continue
            self._at += 1
            parts.append(here)
            if here == "]":
                if len(parts) == 2:
                    break
                return "".join(parts)
        raise self._refused("this class")

    def _escape(self, *, in_class: bool) -> str:
        if found := _HEXADECIMAL.match(self._java, self._at):
            self._at = found.end()
            return re.escape(chr(int(found[1] or found[2] or found[3], 16)))
        if not in_class:
            for pattern in (_NUMBERED, _NAMED, _QUOTED):
                if found := pattern.match(self._java, self._at):
                    self._at = found.end()
                    return found[0] if pattern is _NUMBERED else _rewritten(pattern, found[1])
        name = self._java[self._at + 1 : self._at + 2]
        if not name or (name.isalnum() and name not in _SAME_ESCAPES and (in_class or name not in "ezAbB")):
            raise self._refused(f"\\{name}")
        self._at += 2
        return {"e": r"\x1b", "z": r"\Z"}.get(name, f"\\{name}" if name.isascii() else name)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._java, self._at)
        if found is None:
            raise self._refused(self._java[self._at : self._at + 3])
        self._at = found.end()
        return found

    def _refused(self, what: str) -> ValueError:
        return ValueError(f"pattern {self._java!r}: {what} at character {self._at + 1} is not supported")


def _rewritten(pattern: re.Pattern[str], content: str) -> str:
    return f"(?P={content})" if pattern is _NAMED else re.escape(content)


def parse_replacement(java: str, pattern: re.Pattern[str]) -> list[str | int]:
    """Return the texts and the numbers of groups that a replacement of Java consists of. Raises ValueError."""
    parts: list[str | int] = []
    at = 0
    while at < len(java):
        character = java[at]
        at += 1
        if character == "\\":
            if at == len(java):
                raise ValueError(f"replacement {java!r}: nothing stands behind the last backslash")
            parts.append(java[at])
            at += 1
        elif character == "$":
            number, at = _group(java, at, pattern)
            parts.append(number)
        else:
            parts.append(character)
    return parts


def _group(java: str, at: int, pattern: re.Pattern[str]) -> tuple[int, int]:
    """Return the number of the group that is named behind a ``$``, and the offset behind it."""
    if found := re.compile(r"\{([a-zA-Z][a-zA-Z0-9]*)\}").match(java, at):
        if found[1] not in pattern.groupindex:
            raise ValueError(f"replacement {java!r}: there is no group {found[1]}")
        return pattern.groupindex[found[1]], found.end()
    digits = re.compile("[0-9]+").match(java, at)
    if digits is None:
        raise ValueError(f"replacement {java!r}: a $ has to name a group")
    number, at = int(digits[0][0]), at + 1
    for digit in digits[0][1:]:
        if number * 10 + int(digit) > pattern.groups:
            break
        number, at = number * 10 + int(digit), at + 1
    if number > pattern.groups:
        raise ValueError(f"replacement {java!r}: there is no group {number}")
    return number, at
