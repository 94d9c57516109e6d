"""The sidecar's connection to its cluster: to its own broker if that runs, else to any other broker."""

from __future__ import annotations

from typing import Protocol

from proxy.config import Config, Endpoint
from proxy.errors import BrokersideError, LocalError
from proxy.fleet.connection import BrokerConnection, BrokerUnreachable
from proxy.fleet.internal_security import InternalSecurity
from proxy.rpc import messages
from proxy.rpc.messages import RpcRequest


class Caller(Protocol):
    """Sends requests to the cluster."""

    away_reason: str | None
    """Why another broker than the sidecar's own answered the last request; None if its own did."""

    async def call(self, request: RpcRequest) -> bytes:
        """Send ``request`` and return what follows the response's correlation id. Raises BrokersideError."""

    def close(self) -> None:
        """Close the connection; the next request opens another."""


class ClusterClient:
    """Sends requests over the INTERNAL listener and keeps its connection. For one task: one request at a time."""

    def __init__(self, config: Config, client_id: str) -> None:
        """The first request connects."""
        self.away_reason: str | None = None
        self._settings = config.internal_client_settings()
        self._broker_id = config.broker_id
        self._client_id = client_id
        self._security = InternalSecurity(self._settings)
        self._connection: BrokerConnection | None = None

    async def call(self, request: RpcRequest) -> bytes:
        """Send ``request`` and return what follows the response's correlation id.

        A kept connection that has ended is replaced once. Raises BrokersideError; LocalError for settings that are not
        supported.
        """
        kept = self._connection is not None
        try:
            return await self._call(request)
        except BrokerUnreachable:
            if not kept:
                raise
        # The broker has restarted, or ended the connection as idle or for a new authentication.
        return await self._call(request)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _call(self, request: RpcRequest) -> bytes:
        if self._connection is None:
            self._connection = await self._open()
        try:
            return await self._connection.call(request)
        except BaseException:
            self.close()
            raise

    async def _open(self) -> BrokerConnection:
        failure: BrokersideError = LocalError("internal.bootstrap.servers is missing")
        for server in filter(None, self._settings.get("bootstrap.servers", "").split(",")):
            connection = None
            try:
                connection = await self._connect(Endpoint.parse(server))
                return await self._switch_to_own_broker(connection)
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if isinstance(error, LocalError) or not isinstance(error, BrokersideError):
                    raise
                failure = error
        raise failure

    async def _switch_to_own_broker(self, connection: BrokerConnection) -> BrokerConnection:
        """Return a connection to the sidecar's own broker if it can be reached, else ``connection``."""
        own = messages.decode_brokers(await connection.call(messages.metadata_request())).get(self._broker_id)
        if own is None:
            self.away_reason = f"broker {self._broker_id} is not in the cluster"
            return connection
        if own != connection.endpoint:
            try:
                own_connection = await self._connect(own)
            except BrokersideError as error:
                self.away_reason = f"broker {self._broker_id} does not answer ({error})"
                return connection
            connection.close()
            connection = own_connection
        self.away_reason = None
        return connection

    async def _connect(self, endpoint: Endpoint) -> BrokerConnection:
        return await BrokerConnection.open(endpoint, *await self._security.current(), self._client_id)
