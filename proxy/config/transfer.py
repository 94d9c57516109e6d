"""A configuration on its way to another process of the sidecar: as bytes, secrets revealed.

Only for a socket or memory that nobody else can read; never for a file, an argument, or the environment.
"""

from __future__ import annotations

import msgspec

from proxy.config.model import Config
from proxy.config.values import Secret


def pack(config: Config) -> bytes:
    """Return ``config`` as bytes for ``unpack``."""
    values = config.model_dump(mode="json", by_alias=True)
    secrets = {name: value.reveal() for name, value in config.internal.items() if isinstance(value, Secret)}
    return msgspec.json.encode((values, secrets))


def unpack(packed: bytes) -> Config:
    """Return the configuration that was packed; equal to it."""
    values, secrets = msgspec.json.decode(packed)
    values["internal"].update((name, Secret(text)) for name, text in secrets.items())
    return Config.model_validate(values)
