"""A configuration as bytes for another process of the sidecar, with its secrets.

Only for a socket or memory that nobody else can read; never for a file, an argument, or the environment.
"""

from __future__ import annotations

import msgspec

from proxy.config.model import Config, secrets_of
from proxy.config.quotas import Quotas
from proxy.config.values import FileText, Secret

NO_QUOTAS = Quotas()


def pack(config: Config) -> bytes:
    """Return ``config`` as bytes for ``unpack``, without its quotas but for ``ip.store``.

    Only the accepting process needs them. Thousands of addresses would keep the loops of both processes busy for tens
    of milliseconds.
    """
    config = config.model_copy(update={"quotas": NO_QUOTAS.model_copy(update={"ip_store": config.quotas.ip_store})})
    values = config.model_dump(mode="json", by_alias=True)
    secrets = [
        (path, value.reveal(), value.name if isinstance(value, FileText) else None)
        for path, value in secrets_of(config)
    ]
    return msgspec.json.encode((values, secrets))


def unpack(packed: bytes) -> Config:
    """Return the configuration that was packed, with default quotas but for ``ip.store``."""
    values, secrets = msgspec.json.decode(packed)
    for (*path, name), text, file in secrets:
        section = values
        for part in path:
            section = section[part]
        section[name] = Secret(text) if file is None else FileText(text, file)
    return Config.model_validate(values)
