"""Asks a sidecar for BrokerMetadata, over one connection that is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from proxy.client.blocking_client import BlockingClient
from proxy.client.errors import BrokerIdMismatch, UnsupportedRequestError
from proxy.config.values import INT32_MAX, Endpoint
from proxy.errors import LocalError
from proxy.interceptors.broker_metadata import (
    BROKER_METADATA_VERSION,
    THIS_BROKER,
    BrokerEntry,
    decode_response,
    encode_request,
)
from proxy.protocol.private import BASE, PRIVATE
from proxy.rpc.messages import RpcRequest


class BrokerMetadataClient(BlockingClient):
    """For one thread; not within a running event loop. Every error is a BrokersideError."""

    def __init__(
        self,
        address: str | Endpoint,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        api_key: int = BASE,
    ) -> None:
        """As BlockingClient. ``api_key``: the sidecars' ``private.api.key.base``."""
        super().__init__(address, settings)
        self._api_key = api_key

    def brokers(self, node_ids: Iterable[int] = ()) -> list[BrokerEntry]:
        """Return these brokers, all without any; those that are not known are left out.

        Raises UnsupportedRequestError where the other end answers requests that it does not have, and LocalError for
        what is no node id.
        """
        node_ids = list(node_ids)
        for node_id in node_ids:
            if not THIS_BROKER <= node_id <= INT32_MAX:
                raise LocalError(f"broker {node_id}: allowed are node ids up to {INT32_MAX}, and {THIS_BROKER}")
        request = RpcRequest(self._api_key, BROKER_METADATA_VERSION, encode_request(node_ids))
        answer = self._call(request)
        if not answer:
            raise UnsupportedRequestError(PRIVATE[BASE].name, BROKER_METADATA_VERSION)
        return decode_response(answer)

    def this_broker(self) -> BrokerEntry:
        """Return the broker at the other end of the connection."""
        [broker] = self.brokers([THIS_BROKER])
        return broker

    def check(self, node_id: int) -> BrokerEntry:
        """Return the broker at the other end. Raises BrokerIdMismatch where it is another one."""
        broker = self.this_broker()
        if broker.node_id != node_id:
            raise BrokerIdMismatch(node_id, broker.node_id)
        return broker

    def move_to(self, node_id: int) -> BrokerEntry:
        """Talk to this broker from now on: over the connection that is there where it is the one, else over another.

        Raises LocalError for a broker that is not known, or not where its clients reach it.
        """
        here, *others = sorted(self.brokers([THIS_BROKER, node_id]), key=lambda one: one.node_id == node_id)
        if here.node_id == node_id:
            return here
        if not others:
            raise LocalError(f"broker {node_id} is not in the fleet of {self.address}")
        [wanted] = others
        if wanted.port < 0:
            raise LocalError(f"broker {node_id}: {self.address} does not know where clients reach it")
        self._disconnect()
        self.address = Endpoint(wanted.host, wanted.port)
        return self.check(node_id)
