"""The TLS contexts of all listeners of one process. New settings replace them while connections continue.

A connection keeps the context that it began with. So a new certificate, or another CA of clients, acts from the next
handshake on. Sessions of the old context cannot be resumed with the new one.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

import structlog

from proxy.config import Config
from proxy.daemon_executor import DaemonExecutor
from proxy.errors import LocalError
from proxy.tls.contexts import TlsSettingError, build_client_context, build_server_context
from proxy.tls.principal_mapping import PrincipalMapper
from proxy.tls.tls_settings import ClientTls, ServerTls

BUILD_TIMEOUT = 10.0
"""Seconds. It takes milliseconds, and longer only where the system's CAs are on a slow file system."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Settings:
    """Of one listener. ``server``, ``client``: None without TLS on that side."""

    server: ServerTls | None
    client: ClientTls | None
    mapping_rules: str


@dataclass
class ListenerTls:
    """What new connections of one listener use. ``server``: towards clients, ``client``: towards the broker."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext | None
    server_name: str
    """The name of the broker, where there is ``client``."""
    mapper: PrincipalMapper


class TlsContexts:
    """The contexts by listener name, which stay the same objects. Belongs to the event loop's thread."""

    def __init__(self, config: Config) -> None:
        """Reads the system's CAs where a listener needs them. Raises LocalError."""
        self._settings = _settings_of(config)
        self._executor = DaemonExecutor("tls")
        self._update: asyncio.Task[None] | None = None
        try:
            self._listeners = {name: _build(one) for name, one in self._settings.items()}
        except TlsSettingError as error:
            raise LocalError(f"TLS: {error.key} {error}") from None

    def __getitem__(self, listener: str) -> ListenerTls:
        return self._listeners[listener]

    def update_config(self, config: Config) -> None:
        """Use new settings soon. If no context can be made of them, the old ones stay."""
        before, self._settings = self._settings, _settings_of(config)
        for name in before.keys() - self._settings.keys():
            del self._listeners[name]
        for name in self._settings.keys() - before.keys():
            self._listeners[name] = _build(self._settings[name])  # without TLS: a reload adds no listener with it
        changed = {name: one for name, one in self._settings.items() if one != before.get(name, one)}
        if changed:
            self._update = asyncio.get_running_loop().create_task(self._replace(changed, self._update))

    async def _replace(self, changed: dict[str, _Settings], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        try:
            built = await self._executor.run(
                lambda: {name: _build(one) for name, one in changed.items()}, BUILD_TIMEOUT
            )
        except (TlsSettingError, OSError) as error:  # of a TimeoutError, too; the configuration was checked
            log.error("tls_not_updated", listeners=sorted(changed), error=str(error) or type(error).__name__)
            return
        for name, new in built.items():
            old = self._listeners.get(name)
            if old is None:  # a later reload has removed the listener
                continue
            old.server, old.client = new.server, new.client
            old.server_name, old.mapper = new.server_name, new.mapper
        log.info("tls_updated", listeners=sorted(changed))


def _settings_of(config: Config) -> dict[str, _Settings]:
    return {
        one.name: _Settings(
            None if one.tls is None else one.tls.settings(),
            None if one.upstream_tls is None else one.upstream_tls.settings(one.upstream.host),
            "" if one.tls is None else one.tls.ssl_principal_mapping_rules,
        )
        for one in config.listeners
    }


def _build(settings: _Settings) -> ListenerTls:
    return ListenerTls(
        None if settings.server is None else build_server_context(settings.server),
        None if settings.client is None else build_client_context(settings.client),
        "" if settings.client is None else settings.client.server_name,
        PrincipalMapper(settings.mapping_rules),
    )
