"""Answers what consumers ask of the coordinators of their groups: where one is, and to be registered.

ClusterMetadata is answered at once, by every sidecar. RegisterConsumer is answered at once where the group is not
coordinated here. Else the broker is asked, as the client, whether it may read the group and the topics that it names.
If it may, the connection is given up to the coordinator, which answers from then on (``proxy.net.consumers``). Topics
that match a pattern are asked about there: only the main process knows which there are.

The requests that a coordinator sends (Ping, StopFetcher, StartFetcher) end a client's connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.registration import is_group_id
from proxy.coordinator.subscription import TopicCount, parse_topic_count
from proxy.coordinator.view import NO_COORDINATOR, GroupsDirectory
from proxy.coordinator.wire import (
    CLUSTER_METADATA,
    REGISTER_CONSUMER,
    ClusterMetadataResponse,
    EndpointEntry,
    RegisterConsumerRequest,
    RegisterConsumerResponse,
    RegistrationRefused,
    decode_cluster_metadata_request,
    decode_register_consumer_request,
    encode_cluster_metadata_response,
    encode_register_consumer_response,
)
from proxy.core.interceptor import (
    ON_BODY,
    ON_HEADER,
    BrokerCall,
    Deferred,
    Disposition,
    GivenUp,
    Interceptor,
    Request,
    Verdict,
)
from proxy.core.wire import TRUNCATED, string
from proxy.errors import MalformedBody
from proxy.interceptors.broker_metadata import FleetDirectory
from proxy.interceptors.consumer_rights import ask_rights
from proxy.protocol.private import BASE, PRIVATE

_header = struct.Struct(">hhi")

FIRST_PARTITION = 0
"""Whose coordinator version 0 of ClusterMetadata asks for, which names no group."""


class Registration(NamedTuple):
    """A RegisterConsumer, with what its header says. ``correlation_id``: 0 before the connection is given up."""

    api_version: int
    correlation_id: int
    client_id: str
    request: RegisterConsumerRequest


class RegistrationHeader(NamedTuple):
    """The header of a request on a connection that was given up."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str


class ConsumerGroupsInterceptor(Interceptor):
    """Of one listener. ``base``: the first of the private api keys.

    ``hands_over``: whether a connection of this listener can be given up: with TLS on one of its sides it cannot, and
    there is no coordinator for its clients.
    """

    def __init__(
        self, groups: GroupsDirectory, fleet: FleetDirectory, listener: str, base: int, *, hands_over: bool
    ) -> None:
        self._groups = groups
        self._fleet = fleet
        self._listener = listener
        self._base = base
        self._hands_over = hands_over

    def flags(self, api_key: int, api_version: int) -> int:
        """The private apis but BrokerMetadata, in the versions that there are."""
        key = api_key - self._base + BASE
        if key == BASE or (api := PRIVATE.get(key)) is None or not api.min_version <= api_version <= api.max_version:
            return 0
        return ON_BODY if key in (CLUSTER_METADATA, REGISTER_CONSUMER) else ON_HEADER

    def on_header(self, request: Request) -> Verdict:
        """Close the connection: only a coordinator sends this, to a consumer."""
        return Disposition.CLOSE

    def on_body(self, request: Request, body: bytes) -> Verdict:
        """Answer the request, or defer it. That of an unauthenticated client is forwarded, and the broker closes the
        connection."""
        if request.connection.principal_source == "unauthenticated":
            return Disposition.FORWARD
        if request.api_key - self._base + BASE == CLUSTER_METADATA:
            found = self._find(decode_cluster_metadata_request(request.api_version, body).group_id)
            return encode_cluster_metadata_response(found)
        try:
            decoded = decode_register_consumer_request(request.api_version, body)
        except RegistrationRefused as error:
            return encode_register_consumer_response(request.api_version, RegisterConsumerResponse(error.code))
        if (refused := self._refusal(decoded.group_id)) is not None:
            return encode_register_consumer_response(request.api_version, refused)
        return Deferred(partial(self._serve, Registration(request.api_version, 0, request.client_id or "", decoded)))

    def _find(self, group_id: str | None) -> ClusterMetadataResponse:
        """Return the coordinator of a group; None: of the first partition."""
        if group_id is not None and not is_group_id(group_id):
            return ClusterMetadataResponse(RegistrationCode.INVALID_GROUP_ID, NO_COORDINATOR, ())
        view = self._groups.view
        if not self._hands_over or not view.is_coordinating:
            return ClusterMetadataResponse(RegistrationCode.NOT_AVAILABLE, NO_COORDINATOR, ())
        coordinator = view.coordinator_of(FIRST_PARTITION if group_id is None else view.partition_of(group_id))
        brokers = self._endpoints()
        if all(broker.broker_id != coordinator for broker in brokers):  # it does not run any more
            return ClusterMetadataResponse(RegistrationCode.NOT_AVAILABLE, NO_COORDINATOR, brokers)
        return ClusterMetadataResponse(0, coordinator, brokers)

    def _endpoints(self) -> tuple[EndpointEntry, ...]:
        running: Sequence[int] = ()
        entries = self._fleet.select(self._listener, running)
        return tuple(EndpointEntry(one.node_id, one.host, one.port) for one in entries if one.host)

    def _refusal(self, group_id: str) -> RegisterConsumerResponse | None:
        """Return the response to a registration of a group that is not coordinated here; None: it is."""
        view = self._groups.view
        if not self._hands_over or not view.is_coordinating:
            return RegisterConsumerResponse(RegistrationCode.NOT_AVAILABLE)
        partition = view.partition_of(group_id)
        if partition in view.own:
            return None
        coordinator = view.coordinator_of(partition)
        code = RegistrationCode.NOT_AVAILABLE if coordinator == NO_COORDINATOR else RegistrationCode.NOT_COORDINATOR
        return RegisterConsumerResponse(code, coordinator)

    async def _serve(self, registration: Registration, call: BrokerCall) -> bytes | GivenUp:
        """Refuse a client that may not read what it names; else give its connection up."""
        code = await ask_to_register(call, registration.request)
        if code:
            return encode_register_consumer_response(registration.api_version, RegisterConsumerResponse(code))
        return GivenUp(registration)


async def ask_to_register(call: BrokerCall, request: RegisterConsumerRequest) -> int:
    """Return the error code of a client that may not read the group or a topic that it names; 0: it may.

    What no group or topic can be called is not asked about: the coordinator refuses it.
    """
    if not is_group_id(request.group_id):
        return RegistrationCode.REGISTERED
    topic_count = read_topic_count(request)
    rights = await ask_rights(call, request.group_id, topic_count.named if topic_count is not None else ())
    if not rights.may_read_group:
        return RegistrationCode.GROUP_DENIED
    return RegistrationCode.TOPIC_DENIED if rights.unreadable else RegistrationCode.REGISTERED


def read_topic_count(request: RegisterConsumerRequest) -> TopicCount | None:
    """Return what a client subscribes to; None if that cannot be read."""
    try:
        return parse_topic_count(request.topic_count)
    except RegistrationRefused:
        return None


def read_header(frame: bytes) -> tuple[RegistrationHeader, bytes]:
    """Return the header of a request, and its body. ``frame``: without its size. Raises MalformedBody."""
    try:
        key, version, correlation_id = _header.unpack_from(frame)
        client_id, pos = string(frame, _header.size)
    except TRUNCATED:
        raise MalformedBody("client", "a request that ends in its header") from None
    return RegistrationHeader(key, version, correlation_id, (client_id or b"").decode(errors="replace")), frame[pos:]


def is_version(api_version: int) -> bool:
    """Return whether there is this version of RegisterConsumer."""
    api = PRIVATE[REGISTER_CONSUMER]
    return api.min_version <= api_version <= api.max_version
