"""The base model and the field types that all definitions share."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

API_VERSION = "brokerside/v1"
"""``apiVersion`` of all kinds except those of OpenSLO."""

_DURATION_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhdw])")

_PORTABLE_PATTERN = re.compile(
    r"(?:[A-Za-z0-9_.|) :;=@,/#-]|\((?!\?)|\(\?:|\\[.wd*+?()|$^-]|\[\^?[A-Za-z0-9_.:=@,/ -]+\]"
    r"|(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})(?!\+))+",
    re.ASCII,
)
"""The regular expression syntax that Python, Java and RE2 share: Python checks patterns, Java matches them for streamed
tables and RE2 for derived ones."""


class StrictModel(BaseModel):
    """Base of all models of definitions: unknown fields are errors, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _parse_duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("must be a duration such as 90s, 5m, 1h, 30d or 4w")
    return timedelta(**{_DURATION_UNITS[found[2]]: int(found[1])})


Duration = Annotated[timedelta, BeforeValidator(_parse_duration)]
"""A duration: an integer and one of the units s, m, h, d, w."""


def _check_pattern(value: str) -> str:
    if not _PORTABLE_PATTERN.fullmatch(value):
        raise ValueError(
            "must be a regular expression of letters, digits, _ - . : ; = @ , / # \\. \\w \\d [] () (?:) | * + ? {n,m};"
            " it is matched against whole names"
        )
    try:
        re.compile(value)
    except (re.error, OverflowError) as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return value


Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""A regular expression that is matched against whole names, in the syntax that Python, Java and RE2 share."""
