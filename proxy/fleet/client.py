"""Whom the sidecar asks: its own broker where that runs, else any other of the cluster, over one kept connection."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from proxy.config import Config, Endpoint
from proxy.errors import BrokersideError, LocalError
from proxy.fleet.connection import Connection, Unreachable
from proxy.fleet.security import Security
from proxy.rpc import messages
from proxy.rpc.messages import Request


class Asking(Protocol):
    """Somebody in the cluster who answers."""

    away: str | None
    """Why it was not the sidecar's own broker that answered last; None where it was."""

    async def ask(self, request: Request) -> bytes:
        """Return the answer without its header. Raises BrokersideError."""

    def close(self) -> None:
        """End the connection; the next request makes another."""


class Client:
    """Asks over the INTERNAL listener. For one task: one request at a time."""

    def __init__(self, config: Config, client_id: str) -> None:
        """Nothing connects before the first request."""
        self.away: str | None = None
        self._settings = config.internal_client_settings()
        self._broker_id = config.broker_id
        self._client_id = client_id
        self._tls: tuple[Security, ssl.SSLContext | None] | None = None
        self._connection: Connection | None = None

    async def ask(self, request: Request) -> bytes:
        """Return the answer without its header. Raises LocalError for settings that it cannot heed."""
        kept = self._connection is not None
        try:
            return await self._ask(request)
        except Unreachable:
            if not kept:
                raise
        # The broker has restarted, or ended the connection as idle or for a new authentication.
        return await self._ask(request)

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _ask(self, request: Request) -> bytes:
        if self._connection is None:
            self._connection = await self._open()
        try:
            return await self._connection.ask(request)
        except BaseException:
            self.close()
            raise

    async def _open(self) -> Connection:
        failure: BrokersideError = LocalError("internal.bootstrap.servers is missing")
        for server in filter(None, self._settings.get("bootstrap.servers", "").split(",")):
            connection = None
            try:
                connection = await self._dial(Endpoint.parse(server))
                return await self._home_from(connection)
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if isinstance(error, LocalError) or not isinstance(error, BrokersideError):
                    raise
                failure = error
        raise failure

    async def _home_from(self, connection: Connection) -> Connection:
        """Go on to the sidecar's own broker where that is another one and can be reached."""
        home = messages.brokers(await connection.ask(messages.metadata())).get(self._broker_id)
        if home is None:
            self.away = f"broker {self._broker_id} is not in the cluster"
            return connection
        if home != connection.endpoint:
            try:
                at_home = await self._dial(home)
            except BrokersideError as error:
                self.away = f"broker {self._broker_id} does not answer ({error})"
                return connection
            connection.close()
            connection = at_home
        self.away = None
        return connection

    async def _dial(self, endpoint: Endpoint) -> Connection:
        if self._tls is None:
            security = Security.of(self._settings)
            self._tls = security, await asyncio.to_thread(security.context)
        return await Connection.open(endpoint, *self._tls, self._client_id)
