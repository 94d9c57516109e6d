"""What all definitions have in common: strict fields, and lengths of time."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

API_VERSION = "brokerside/v1"
"""``apiVersion`` of every kind that is not OpenSLO's."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhdw])")

_PLAIN = re.compile(
    r"(?:[A-Za-z0-9_.|)*+? :;=@,/#-]|\((?!\?)|\(\?:|\\[.wd*+?()|$^-]|\[\^?[A-Za-z0-9_.:=@,/ -]+\]"
    r"|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})+",
    re.ASCII,
)
"""The part of regular expressions in which Python's, which checks, and Java's, which matches, say the same."""


class Strict(BaseModel):
    """A part of a definition: what it does not know is refused, and nothing is changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("must be a length of time as 90s, 5m, 1h, 30d or 4w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


Duration = Annotated[timedelta, BeforeValidator(_duration)]
"""A length of time: a whole number and one of s, m, h, d, w."""


def _pattern(value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise ValueError(
            "must be a regular expression of letters, digits, _ - . : ; = @ , / # \\. \\w \\d [] () (?:) | * + ? {n,m};"
            " it is matched against whole names"
        )
    try:
        re.compile(value)
    except (re.error, OverflowError) as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression that names match as a whole, of what Python's and Java's have in common."""
