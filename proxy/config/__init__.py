"""The configuration: one YAML file, overridden by the environment, checked as a whole before anything starts.

values.py        Endpoint and Secret.
types.py         types of values, and what is said of what is none of them.
key_definition.py  how a key is defined; all that is said of it elsewhere follows from its definition.
model.py         every key, with its type, default, bounds, meaning and example; sections.py: the keys of sections,
                 quotas.py: those of quotas, coordinator.py: those of coordinator.
tls_sections.py  the keys of TLS of a listener; tls_files.py: the files that they name.
keys.py          the model as a flat table of keys, for those who need to look one up.
document.py      YAML to plain values that know their line.
environment.py   BROKERSIDE_* variables over the file.
secret_files.py  values that stand in files of their own; hmac_keys.py: HMAC keys, by id.
                 regular_files.py reads both, and nothing that only looks like a file.
host_names.py    host names in limits of addresses become addresses.
internal.py      with which settings of librdkafka the cluster's quotas can be read.
validation.py    checks across keys: loops, addresses used twice, keys that need each other.
loading.py       all of it in order; all errors reported at once.
limits.py        from the quotas of the file and of the cluster to the limits that act.
difference.py    what is different between two configurations.
serialization.py  a configuration as bytes, for another process of the sidecar.
reference.py     docs/config.md and docs/config/.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from proxy.config.values import Endpoint, Secret

if TYPE_CHECKING:
    from proxy.config.loading import load
    from proxy.config.model import Config, redacted
    from proxy.config.sections import Listener

_LOADED_WHEN_USED = {"load": "loading", "Config": "model", "redacted": "model", "Listener": "sections"}
"""Modules that pydantic is loaded with, by the names that they have here. ``proxy.client`` needs none of them."""

__all__ = [
    "Config",
    "Endpoint",
    "Listener",
    "Secret",
    "load",
    "redacted",
]


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LOADED_WHEN_USED[name]}"), name)
