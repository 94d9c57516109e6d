"""From the subject of a client's certificate to its principal, as a broker does it.

Source: ``SslPrincipalMapper`` and ``DefaultKafkaPrincipalBuilder`` of Kafka 4.3.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from proxy.tls.java_patterns import compile_pattern, parse_replacement

DEFAULT_RULES = "DEFAULT"

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_RULE})\s*(,\s*|$)", re.ASCII)
_PARSER = re.compile(_RULE, re.ASCII)
_REFERENCE = re.compile(r"\$(\d+)", re.ASCII)
_JAVA_BLANKS = "".join(map(chr, range(33)))


class NoMatchingRule(Exception):
    """No rule applies to the subject of a certificate. A broker closes the connection of such a client."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: list[str | int]
    case: str

    def apply(self, name: str) -> str | None:
        """Return the mapped name, None where the pattern does not match the whole of ``name``."""
        if not self.pattern.fullmatch(name):
            return None
        mapped = self.pattern.sub(self._expand, name)  # all matches, as in Java: .* has an empty second one
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped

    def _expand(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)


class PrincipalMapper:
    """Maps names in the format of RFC 2253 by ``rules``, in the syntax of ``ssl.principal.mapping.rules``.

    Raises ValueError for a rule that a broker refuses, that fails for each client there, or whose pattern is one that
    Python does not read as Java does.
    """

    def __init__(self, rules: str = DEFAULT_RULES) -> None:
        self._rules = [
            rule for text in _SPLITTER.finditer(rules.strip(_JAVA_BLANKS)) if (rule := _parse(text[1])) is not None
        ]

    def map_name(self, name: str) -> str:
        """Return what the first rule that applies makes of ``name``. Raises NoMatchingRule."""
        for rule in self._rules:
            if isinstance(rule, str):
                return name
            if (mapped := rule.apply(name)) is not None:
                return mapped
        raise NoMatchingRule(name)


def _parse(text: str) -> _Rule | str | None:
    """Return a rule; ``DEFAULT`` for that one, and None for no rule at all."""
    found = _PARSER.match(text)
    if found is None or found.end() != len(text):
        raise ValueError(f"{text!r} is no rule")
    if found[1] is not None:
        return DEFAULT_RULES
    if found[2] is None:
        return None
    pattern = compile_pattern(found[2])
    return _Rule(pattern, parse_replacement(_escape_references(found[3], pattern.groups), pattern), found[4])


def _escape_references(replacement: str, groups: int) -> str:
    """Put a backslash before references to groups that the pattern does not have, exactly as a broker does.

    With several of them its offsets are of the text before the first one was escaped.
    """
    if not groups:
        return replacement
    value = replacement
    for found in _REFERENCE.finditer(replacement):
        if found[1].startswith("0"):
            continue
        number = int(found[1])
        while number > groups and number >= 10:
            number //= 10
        if number > groups:
            at = found.start(1) - 1
            value = f"{value[:at]}\\{value[at:]}"
    return value
