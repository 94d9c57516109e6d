"""The TLS contexts of all listeners of one process. A reload builds new ones before it applies anything.

A connection keeps the context that it began with. So a new certificate, or another CA of clients, acts from the next
handshake on. Sessions of the old context cannot be resumed with the new one.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class ListenerTls:
    """What new connections of one listener use. ``server``: towards clients, ``client``: towards the broker; None
    without TLS on that side."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext | None
    server_name: str
    """The name of the broker, where there is ``client``."""
    mapper: PrincipalMapper


NO_TLS = ListenerTls(None, None, "", PrincipalMapper(""))


class TlsContexts:
    """The contexts by listener name. Belongs to the event loop's thread."""

    def __init__(self, config: Config) -> None:
        """Reads the system's CAs where a listener needs them. Raises LocalError."""
        self._settings = _settings_of(config)
        self._executor = DaemonExecutor("tls")
        self._prepared: dict[_Settings, ListenerTls] = {}
        self._listeners = {name: _build(one) for name, one in self._settings.items()}

    def __getitem__(self, listener: str) -> ListenerTls:
        return self._listeners.get(listener, NO_TLS)

    async def prepare_config(self, config: Config) -> None:
        """Build the contexts that ``config`` needs and that are not there yet, for ``update_config``.

        Raises LocalError.
        """
        needed = _changed(self._settings, _settings_of(config)).values()
        prepared = self._prepared = {}
        try:
            prepared |= await self._executor.run(lambda: {one: _build(one) for one in needed}, BUILD_TIMEOUT)
        except TimeoutError:
            raise LocalError(f"TLS: no context within {BUILD_TIMEOUT:.0f} s") from None

    def discard(self) -> None:
        """Forget the contexts of ``prepare_config``, with their private keys, also those that are still to come."""
        self._prepared = {}

    def update_config(self, config: Config) -> None:
        """Use the contexts of ``prepare_config`` for new connections.

        Where that was not called with this ``config``, they are built here: in a worker without connections, see
        ``DataPlane.update_config``.
        Raises LocalError, and changes nothing then.
        """
        wanted = _settings_of(config)
        changed = _changed(self._settings, wanted)
        new = {name: self._prepared.get(one) or _build(one) for name, one in changed.items()}
        self._settings, self._prepared = wanted, {}
        self._listeners = {name: new.get(name) or self._listeners[name] for name in wanted}
        if changed:
            log.info("tls_updated", listeners=sorted(changed))


def needs_contexts(before: Config, after: Config) -> bool:
    """Return whether ``after`` needs contexts that ``before`` does not have."""
    return bool(_changed(_settings_of(before), _settings_of(after)))


def _changed(before: dict[str, _Settings], after: dict[str, _Settings]) -> dict[str, _Settings]:
    return {name: one for name, one in after.items() if one != before.get(name)}


def _settings_of(config: Config) -> dict[str, _Settings]:
    """Return the settings of the listeners that have TLS on any side."""
    return {
        one.name: _Settings(
            None if one.tls is None else one.tls.settings(),
            None if one.upstream_tls is None else one.upstream_tls.settings(one.upstream.host),
            "" if one.tls is None else one.tls.ssl_principal_mapping_rules,
        )
        for one in config.listeners
        if one.tls is not None or one.upstream_tls is not None
    }


def _build(settings: _Settings) -> ListenerTls:
    """Raises LocalError."""
    try:
        return ListenerTls(
            None if settings.server is None else build_server_context(settings.server),
            None if settings.client is None else build_client_context(settings.client),
            "" if settings.client is None else settings.client.server_name,
            PrincipalMapper(settings.mapping_rules),
        )
    except TlsSettingError as error:
        raise LocalError(f"TLS: {error.key} {error}") from None
    except OSError as error:  # no descriptor is left
        raise LocalError(f"TLS: {error.strerror or type(error).__name__}") from None
