"""How the model's keys are made: a section of known keys, and a key with all that a person has to know of it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

INT32_MAX = 2_147_483_647


class Section(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def key(name: str, meaning: str, *, kind: str, allowed: str, unit: str = "", **rest: Any) -> Any:
    """Define one key. ``kind``: its type for a person; ``allowed``: what an error message offers."""
    notes: dict[str, Any] = {"kind": kind, "allowed": allowed, "unit": unit}
    return Field(alias=name, description=meaning, json_schema_extra=notes, **rest)


def number(name: str, meaning: str, default: int, least: int, most: int, unit: str) -> Any:
    """Define a key whose value is a whole number from ``least`` to ``most``."""
    allowed = f"{least}–{most} {unit}".rstrip()
    limits = {"ge": least, "le": most, "strict": True}
    return key(name, meaning, kind="integer", allowed=allowed, unit=unit, default=default, **limits)


def switch(name: str, meaning: str, *, default: bool) -> Any:
    """Define a key that is on or off."""
    return key(name, meaning, kind="boolean", allowed="true or false", default=default, strict=True)
