"""Loads a ``Config`` from a file and the environment, or reports all errors in them at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from proxy.config import keys
from proxy.config.document import TAG_PREFIX, TAGS, ConfigDocument, Problem, parse
from proxy.config.environment import apply_environment
from proxy.config.host_names import resolve_overrides
from proxy.config.keys import KEYS, LIBRDKAFKA_MAPPINGS, find, is_librdkafka_setting, is_single, path_in_file, printable
from proxy.config.model import Config
from proxy.config.regular_files import read_regular
from proxy.config.secret_files import read_secret_files
from proxy.config.tls_files import check_tls, read_tls_files
from proxy.config.validation import validate_across_keys
from proxy.errors import ConfigError

MAX_CONFIG_BYTES = 4_194_304
"""Bytes of a configuration; 10,000 values take some hundred thousand."""

_ERROR_TEXTS = {
    "bool_type": "is not true or false",
    "int_type": "is not a whole number",
    "greater_than_equal": "is out of range",
    "less_than_equal": "is out of range",
    "literal_error": "is not known",
    "tuple_type": "is not a list",
    "dict_type": "is not a mapping",
    "model_type": "is not a mapping",
}
"""Texts for pydantic's kinds of errors; a ``value_error`` has its own text."""


def load(
    path: str | os.PathLike[str],
    environ: Mapping[str, str] = os.environ,
    pause: Callable[[], None] = lambda: None,
) -> Config:
    """Read the configuration at ``path``, overridden by ``environ``. Raises ConfigError with all errors in it.

    ``pause``: called often, so that the caller's process can do other work meanwhile.
    """
    source = os.fspath(path)
    document, problems = parse(source, _text(source), pause)
    _fill_empty_mappings(document)
    problems += _gather_tags(document)
    problems += apply_environment(document, environ)
    problems += read_secret_files(document, Path(source).parent)
    problems += read_tls_files(document, Path(source).parent)
    problems += resolve_overrides(document)
    problems += validate_across_keys(document, {problem.path for problem in problems})
    final = {problem.path for problem in problems if problem.final}
    config = None
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        for details in error.errors(include_url=False, include_context=True):
            if path_in_file(details["loc"]) not in final and details["type"] != "default_factory_not_called":
                problems.append(_problem(document, details))
    if config is not None and not problems:
        problems += check_tls(config)
    if config is None or problems:
        raise ConfigError(source, document.describe(problems))
    return config


def _text(source: str) -> str:
    try:
        content = read_regular(Path(source), MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise ConfigError(source, [f"holds more than {MAX_CONFIG_BYTES} bytes"])
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(source, [f"is not text in UTF-8: byte {error.start}"]) from None
    except OSError as error:
        raise ConfigError(source, [f"cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ConfigError(source, [str(error)]) from None


def _fill_empty_mappings(document: ConfigDocument) -> None:
    """Make each mapping empty that has no value in the file, as one whose keys are all commented out."""
    for path, key in KEYS.items():
        above = document.get(path[:-1]) if is_single(path) and key.kind.startswith("mapping") else None
        if isinstance(above, dict) and path[-1] in above and above[path[-1]] is None:
            above[path[-1]] = {}


def _gather_tags(document: ConfigDocument) -> Iterator[Problem]:
    """Put every ``tag.NAME`` into the mapping of tags."""
    values = document.values
    for key in [key for key in values if key.startswith(TAG_PREFIX)]:
        name, value = key.removeprefix(TAG_PREFIX), values.pop(key)
        tags = values.setdefault(TAGS, {})
        if not isinstance(tags, dict):
            return  # that mistake is reported later
        if name in tags:
            yield Problem((key,), f"is given twice (allowed: once, here or as {printable(name)} under {TAGS})")
            continue
        document.relocate((key,), (TAGS, name), value)


def _problem(document: ConfigDocument, details: ErrorDetails) -> Problem:
    path, kind = details["loc"], details["type"]
    if path[-1] == "[key]":  # pydantic's word for a mapping's key that is wrong itself
        path = path[:-1]
    key, place = find(path), path_in_file(path)
    if kind == "extra_forbidden":
        return Problem(place, f"unknown key ({_suggest_key(path)})")
    assert key is not None, "every error but an unknown key belongs to a key"
    if kind == "missing":
        return Problem(place, f"is missing (allowed: {key.allowed})")
    what = str(details["ctx"]["error"]) if kind == "value_error" else _ERROR_TEXTS.get(kind, "is wrong")
    return Problem(place, f"{_show_value(path, document, details['input'])} {what} (allowed: {key.allowed})")


def _suggest_key(path: keys.Path) -> str:
    """Return what to write in place of the unknown key at ``path``."""
    *above, name = path
    assert isinstance(name, str)
    names = keys.below(tuple(above))
    for section in names:
        rest = name.removeprefix(f"{section}.")
        if rest != name and ((*above, section) in LIBRDKAFKA_MAPPINGS or rest in keys.below((*above, section))):
            return f"write {rest} under {section}"
        if name in keys.below((*above, section)):
            return f"write it under {section}"
    import difflib  # only mistakes need it

    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"allowed: {', '.join(sorted(names))}"


def _show_value(path: keys.Path, document: ConfigDocument, value: Any) -> str:
    """Return ``value`` for an error message; what may be a secret, or is long, is only named."""
    if is_librdkafka_setting(path) or isinstance(value, dict | list):
        return "the value"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 64:
        return "a huge number"
    return printable(repr(value) if isinstance(value, str) else str(value))
