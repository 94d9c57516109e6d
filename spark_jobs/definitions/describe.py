"""What definitions declare, in words, for who wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from spark_jobs.definitions.load import Definitions


def describe(declared: Definitions) -> list[str]:
    """Return a line for each thing that is declared; a definition that has more to say has ``described()``."""
    lines: list[str] = []
    for field in fields(declared):
        lines += _lines(field.name, getattr(declared, field.name))
    return lines or ["nothing is declared"]


def _lines(kind: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield f"{kind}: {name}: {one}"
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _lines(kind, one)
    elif hasattr(value, "described"):
        yield from (f"{kind}: {line}" for line in value.described())
    elif value is not None:
        yield f"{kind}: {getattr(value, 'name', value)}"
