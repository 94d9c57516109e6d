"""Every implementation of the walkers; tests of walkers run on each of them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from proxy.core import walk


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


COMPILED_WALK = compiled("proxy.compiled.walk_door")

needs_compiled = pytest.mark.skipif(
    COMPILED_WALK is None, reason="the compiled modules are not built: python -m proxy.compiled.build"
)
every_walker = pytest.mark.parametrize("walk", both(walk, COMPILED_WALK))
