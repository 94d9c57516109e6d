"""Every implementation of the walkers; tests of walkers run on each of them."""

from __future__ import annotations

from types import ModuleType

from proxy.core import walk

WALKERS: dict[str, ModuleType] = {"python": walk}
