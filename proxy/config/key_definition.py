"""Defines the keys of the configuration, with all that a user has to know about each."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ConfigSection(BaseModel):
    """A mapping that has known keys only."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def key(
    name: str,
    meaning: str,
    *,
    kind: str,
    allowed: str,
    unit: str = "",
    reload: bool = False,
    example: str | None = None,
    shown_default: str | None = None,
    **rest: Any,
) -> Any:
    """Define one key. Everything else that the program and its documentation say of the key follows from this.

    ``kind``: its type for a person. ``allowed``: what an error message offers. ``reload``: whether a running sidecar
    takes over a change of it, with all below it; it needs a restart otherwise. ``example``: its value in the complete
    example, as YAML; the default without one. ``shown_default``: what docs/config.md says of a default that depends on
    other keys. ``rest``: for pydantic, such as ``default`` and ``ge``.
    """
    notes: dict[str, Any] = {
        "kind": kind,
        "allowed": allowed,
        "unit": unit,
        "reload": reload,
        "example": example,
        "shown_default": shown_default,
    }
    return Field(alias=name, description=meaning, json_schema_extra=notes, **rest)


def number(name: str, meaning: str, default: int, least: int, most: int, unit: str, **rest: Any) -> Any:
    """Define a key whose value is a whole number from ``least`` to ``most``. ``rest``: as of ``key``."""
    allowed = f"{least}–{most} {unit}".rstrip()
    limits: dict[str, Any] = {"ge": least, "le": most, "strict": True}
    return key(name, meaning, kind="integer", allowed=allowed, unit=unit, default=default, **limits, **rest)


def switch(name: str, meaning: str, *, default: bool, **rest: Any) -> Any:
    """Define a key that is on or off. ``rest``: as of ``key``."""
    return key(name, meaning, kind="boolean", allowed="true or false", default=default, strict=True, **rest)
