"""Both implementations of what observers do; tests of them run on each."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest


def compiled(name: str) -> ModuleType | None:
    """Import a compiled module; None where it is not built."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise
        return None


def both(python: Any, cython: Any) -> list[Any]:
    """Parameters of a test that runs on both twins; for the second it is skipped where nothing is compiled."""
    return [pytest.param(python, id="python"), pytest.param(cython, id="cython", marks=needs_compiled)]


needs_compiled = pytest.mark.skipif(
    compiled("observers.compiled") is None, reason="the compiled modules are not built: python -m proxy.compiled.build"
)
