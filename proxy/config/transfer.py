"""A configuration on its way to another process of the sidecar: as bytes, secrets revealed.

Only for a socket or memory that nobody else can read; never for a file, an argument, or the environment.
"""

from __future__ import annotations

import msgspec

from proxy.config.model import Config
from proxy.config.quotas import Quotas
from proxy.config.values import Secret

NO_QUOTAS = Quotas()


def pack(config: Config) -> bytes:
    """Return ``config`` as bytes for ``unpack``, without its quotas: they concern who accepts connections alone.

    Thousands of addresses would keep the loops of both processes busy for tens of milliseconds.
    """
    config = config.model_copy(update={"quotas": NO_QUOTAS})
    values = config.model_dump(mode="json", by_alias=True)
    secrets = {name: value.reveal() for name, value in config.internal.items() if isinstance(value, Secret)}
    return msgspec.json.encode((values, secrets))


def unpack(packed: bytes) -> Config:
    """Return the configuration that was packed; equal to it but for the quotas, which are the defaults."""
    values, secrets = msgspec.json.decode(packed)
    values["internal"].update((name, Secret(text)) for name, text in secrets.items())
    return Config.model_validate(values)
