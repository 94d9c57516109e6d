"""What pydantic finds wrong in a definition, in words for its author."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

_MUST = {
    "missing": "is missing",
    "string_type": "must be text; a number or a date needs quotes",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must not be empty",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "extra_forbidden": "is unknown; there are: {fields}",
    "recursion_loop": "must not be a part of itself",
}
"""By pydantic's name of the mistake; in braces what it knows of it."""

_MUST |= dict.fromkeys(("tuple_type", "list_type"), "must be a list")
_MUST |= dict.fromkeys(
    ("dict_type", "mapping_type", "model_type", "model_attributes_type"), "must be an object with fields"
)
_MUST |= dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number")
_MUST |= dict.fromkeys(
    ("float_type", "float_parsing", "decimal_type", "decimal_parsing", "finite_number"), "must be a number"
)
_MUST |= dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false")


def path_of(error: ErrorDetails) -> tuple[int | str, ...]:
    """Return the path in its document of what ``error`` is about."""
    return ("spec", *(step for step in error["loc"] if step != "[key]"))


def said(error: ErrorDetails, model: type[BaseModel]) -> Iterator[str]:
    """Give a line for each mistake in ``error``, of a ``spec`` that ``model`` reads: value, and what is allowed."""
    steps = path_of(error)[1:]
    context = {**error.get("ctx", {}), "fields": ", ".join(_fields(model, steps[:-1]))}
    text = _MUST.get(error["type"], error["msg"].removeprefix("Value error, ")).format_map(_Known(context))
    # A part as a whole would be a page of text, and of what is missing there is none.
    value = "" if isinstance(error["input"], dict | list | tuple) else f"{shown(error['input'])}: "
    for line in text.split("\n"):
        yield f"{value}{line}"


def shown(value: object) -> str:
    """Return ``value`` about as YAML writes it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case date():
            return value.isoformat()
        case _:
            return repr(value)


def _fields(model: type[BaseModel], steps: Sequence[int | str]) -> list[str]:
    """Return what may be written in the part of ``model`` that is at ``steps``."""
    for step in steps:
        field = next((one for name, one in model.model_fields.items() if (one.alias or name) == step), None)
        # A step that is no field is a place in a list or a key of an object: its values are of the same model.
        if field is not None:
            model = _model(field.annotation) or model
    # A definition's name is in its metadata.
    return [field.title or field.alias or name for name, field in model.model_fields.items() if steps or name != "name"]


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model, get_args(annotation))), None)


class _Known(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"
