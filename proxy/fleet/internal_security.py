"""The security of a sidecar's own connections, whose files may change while it runs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

import structlog

from proxy.config.regular_files import file_state
from proxy.config.values import FileState
from proxy.errors import LocalError
from proxy.fleet.security import Security

log = structlog.get_logger(__name__)


class InternalSecurity:
    """What connections to the INTERNAL listeners need. Files of TLS that have changed are read again."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """``settings``: librdkafka's."""
        self._settings = settings
        self._states: dict[str, FileState] = {}
        self._unusable: dict[str, FileState] = {}
        self._built: tuple[Security, ssl.SSLContext | None] | None = None

    async def current(self) -> tuple[Security, ssl.SSLContext | None]:
        """Return the settings, and the context of a new connection; None without TLS.

        Where changed files cannot be used, as while one of a pair is written, the context is the one before, and the
        log says so once for each state of the files. Raises LocalError where there is none.
        """
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[Security, ssl.SSLContext | None]:
        names = [value for name, value in self._settings.items() if name.startswith("ssl.") and "location" in name]
        states = {name: file_state(Path(name)) for name in names}
        if self._built is None or states != self._states:
            security = Security.from_settings(self._settings)
            try:
                self._built = security, security.build_ssl_context()
                self._states = states
            except LocalError as error:
                if self._built is None:
                    raise
                if states != self._unusable:
                    self._unusable = states
                    log.warning("internal_certificates_unusable", error=str(error))
        return self._built
