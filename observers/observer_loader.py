"""Imports and constructs the classes in ``observer.class.names``, and checks that their methods fit the contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from msgspec import Struct

from observers.api import ExchangeObserver, Observer
from observers.errors import ObserverError

METHOD_ARGUMENTS = {
    "configure": ("configs",),
    "record_request": ("struct", "client_address", "principal", "api_key", "api_version", "correlation_id"),
    "record_response": ("struct", "api_version", "correlation_id"),
    "record_exchanges": ("exchanges", "dropped"),
    "record_changes": ("changes", "dropped"),
    "record_throttles": ("reports", "dropped"),
    "finalized_levels": ("levels",),
    "wants": ("api_key", "api_version"),
    "keeps": ("api_key", "api_version"),
    "close": ("timeout",),
}
"""Required and optional methods of an observer, and the positional arguments of each."""

EXTRA_KEYWORDS = {"record_request": "context", "record_response": "context", "close": "unit"}
"""The keyword argument that a method gets in addition if it accepts it."""


class LoadedObserver(Struct, frozen=True):
    """A constructed observer, and its methods that accept the keyword in ``EXTRA_KEYWORDS``."""

    name: str
    observer: Observer | ExchangeObserver
    extra_keyword_methods: frozenset[str]

    def close(self, timeout: float) -> None:
        """Close the observer within ``timeout`` seconds. Raises what its ``close`` raises."""
        extra = {"unit": "s"} if "close" in self.extra_keyword_methods else {}
        self.observer.close(timeout, **extra)


def load_observers(names: Sequence[str]) -> list[LoadedObserver]:
    """Construct the observers ``names`` (``package.module:Class``), in order.

    Raises ObserverError for a class that is missing, cannot be constructed, does not fit the observer interface or is
    named twice.
    """
    for name in names:
        if names.count(name) > 1:
            raise ObserverError(f"observer {name!r} is named twice in observer.class.names")
    return [_loaded(name, _construct_observer(name)) for name in names]


def describe_error(error: BaseException) -> str:
    """Return type and text of ``error``, which an observer raised at the start."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _construct_observer(name: str) -> Any:
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise ObserverError(f"observer {name!r} is not of the form package.module:Class")
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ObserverError(
            f"observer {name!r}: module {module_name!r} cannot be imported: {describe_error(error)}"
        ) from error
    factory = getattr(module, class_name, None)
    if not isinstance(factory, type):
        raise ObserverError(f"observer {name!r}: module {module_name!r} has no class {class_name!r}")
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ObserverError(
            f"observer {name!r} cannot be constructed without arguments: {describe_error(error)}"
        ) from error


def _loaded(name: str, observer: Any) -> LoadedObserver:
    if not isinstance(observer, Observer | ExchangeObserver):
        raise ObserverError(
            f"observer {name!r} does not fit the observer interface: it needs configure, close and either "
            "record_request and record_response (KIP-388), or record_exchanges; see observers/api.py"
        )
    present = [method for method in METHOD_ARGUMENTS if getattr(observer, method, None) is not None]
    return LoadedObserver(
        name, observer, frozenset(one for one in present if _accepts_extra_keyword(name, one, getattr(observer, one)))
    )


def _accepts_extra_keyword(name: str, method: str, function: Callable[..., Any]) -> bool:
    """Check the signature of a method. Return whether it accepts its keyword in ``EXTRA_KEYWORDS``."""
    arguments = METHOD_ARGUMENTS[method]
    wrong = f"observer {name!r} does not fit the observer interface: {method}({', '.join(arguments)})"
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ObserverError(f"{wrong} must be a plain method, not {'async' if callable(function) else 'a value'}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C have no signature
        return False
    extra = {EXTRA_KEYWORDS[method]: None} if method in EXTRA_KEYWORDS else {}
    try:
        signature.bind(*arguments, **extra)
    except TypeError:
        extra = {}
    try:
        signature.bind(*arguments, **extra)
    except TypeError as error:
        raise ObserverError(f"{wrong} cannot be called so: {error}") from None
    return bool(extra)
