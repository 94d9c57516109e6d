"""Translates validation errors of pydantic into messages for the author of a definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

_MESSAGES = {
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
    "extra_forbidden": "is unknown; the fields are: {fields}",
    "recursion_loop": "must not be a part of itself",
}
"""By pydantic's name of the error. In braces: values of the error's context."""

_MESSAGES |= dict.fromkeys(("tuple_type", "list_type"), "must be a list")
_MESSAGES |= dict.fromkeys(
    ("dict_type", "mapping_type", "model_type", "model_attributes_type"), "must be an object with fields"
)
_MESSAGES |= dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number")
_MESSAGES |= dict.fromkeys(
    ("float_type", "float_parsing", "decimal_type", "decimal_parsing", "finite_number"), "must be a number"
)
_MESSAGES |= dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false")


def error_path(error: ErrorDetails) -> tuple[int | str, ...]:
    """Return the path of the field of ``error`` in its document."""
    return ("spec", *(step for step in error["loc"] if step != "[key]"))


def error_lines(error: ErrorDetails, model: type[BaseModel]) -> Iterator[str]:
    """Yield a line for each message of ``error`` in the ``spec`` of ``model``: value, and what is allowed."""
    steps = error_path(error)[1:]
    context = {**error.get("ctx", {}), "fields": ", ".join(_known_fields(model, steps[:-1]))}
    text = _MESSAGES.get(error["type"], error["msg"].removeprefix("Value error, ")).format_map(_KeepUnknown(context))
    # A whole object would be too long, and a missing field has no value.
    value = "" if isinstance(error["input"], dict | list | tuple) else f"{format_value(error['input'])}: "
    for line in text.split("\n"):
        yield f"{value}{line}"


def format_value(value: object) -> str:
    """Return ``value`` in the notation of YAML."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case date():
            return value.isoformat()
        case _:
            return repr(value)


def _known_fields(model: type[BaseModel], steps: Sequence[int | str]) -> list[str]:
    """Return the names of the fields that are allowed at the path ``steps`` of ``model``."""
    for step in steps:
        field = next((one for name, one in model.model_fields.items() if (one.alias or name) == step), None)
        # A step that is not a field is an index of a list or a key of an object, whose values are of the same model.
        if field is not None:
            model = _model_of(field.annotation) or model
    # The name of a definition is in its metadata, not in its spec.
    return [field.title or field.alias or name for name, field in model.model_fields.items() if steps or name != "name"]


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_of, get_args(annotation))), None)


class _KeepUnknown(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"
