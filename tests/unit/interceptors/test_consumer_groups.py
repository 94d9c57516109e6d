"""What consumers ask of coordinators on an ordinary connection: where they are, and to be registered."""

import asyncio
import struct
from collections.abc import Mapping

import pytest

from proxy.coordinator.view import GroupsDirectory, GroupsView
from proxy.coordinator.wire import RegisterConsumerRequest, encode_register_consumer_request
from proxy.core.exchange import Connection
from proxy.core.interceptor import Deferred, Disposition, GivenUp, InterceptorChain, Request, Verdict
from proxy.interceptors.broker_metadata import BrokerView, FleetDirectory, FleetView
from proxy.interceptors.consumer_groups import ConsumerGroupsInterceptor, Registration
from proxy.interceptors.consumer_rights import HEARTBEAT, OFFSET_COMMIT
from tests.cases import each
from tests.frames import response

CLUSTER_METADATA, REGISTER_CONSUMER = 30_001, 30_002
CLIENT = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
BROKERS = (
    BrokerView(1, {"client": ("h", 9092)}),
    BrokerView(2, {"client": ("h", 9093)}),
    BrokerView(3, {"client": ("h", 9094)}, running=False),
)
VIEW = GroupsView(12, dict.fromkeys(range(12), 2), frozenset(), 1)
"""All groups are coordinated by sidecar 2. This one is 1."""

HERE = VIEW._replace(own=frozenset(range(12)))
ASKED = RegisterConsumerRequest("g", "c1", '{"t":2}', True, "smallest", 6000)


def interceptor(view: GroupsView = VIEW, *, hands_over: bool = True, base: int = 30_000) -> ConsumerGroupsInterceptor:
    groups = GroupsDirectory()
    groups.view = view
    fleet = FleetDirectory(FleetView(1, BROKERS))
    return ConsumerGroupsInterceptor(groups, fleet, "CLIENT", base, hands_over=hands_over)


def ask(made: ConsumerGroupsInterceptor, key: int, version: int, body: bytes, client: Connection = CLIENT) -> Verdict:
    return InterceptorChain([made]).on_body(Request(client, key, version, "c", 1, 0), body)


def located(view: GroupsView, version: int = 1, group: bytes = b"\0\1g", *, hands_over: bool = True) -> bytes:
    found = ask(interceptor(view, hands_over=hands_over), CLUSTER_METADATA, version, group if version else b"")
    assert isinstance(found, bytes)
    return found


def registered(view: GroupsView, version: int = 1, body: bytes | None = None, *, hands_over: bool = True) -> Verdict:
    made = encode_register_consumer_request(version, ASKED) if body is None else body
    return ask(interceptor(view, hands_over=hands_over), REGISTER_CONSUMER, version, made)


# ---- ClusterMetadata ------------------------------------------------------------------------------------------------


def test_a_coordinator_is_told_with_all_sidecars_that_run() -> None:
    brokers = "00000001" + "000168" + "00002384" + "00000002" + "000168" + "00002385"
    for version in (0, 1):
        found = response(2, located(VIEW, version))
        assert found.hex() == "00000022" + "00000002" + "0000" + "00000002" + "0002" + brokers
    # Without a coordinator it is error 15 as in the golden bytes.
    nobody = "0000000c00000002000fffffffff0000"
    assert response(2, located(GroupsView(), 0)).hex() == nobody
    assert response(2, located(VIEW._replace(level=0))).hex() == nobody
    assert response(2, located(VIEW, hands_over=False)).hex() == nobody
    # Version 0 asks for the coordinator of the first partition and version 1 for that of a group.
    view = VIEW._replace(holders={0: 1, VIEW.partition_of("g"): 2})
    assert VIEW.partition_of("g") != 0
    assert located(view, 0)[:6] == struct.pack(">hi", 0, 1)
    assert located(view, 1)[:6] == struct.pack(">hi", 0, 2)


@each("holders", [{}, {0: -1}, {0: 3}, {0: 9}, {1: 2}])
def test_a_coordinator_that_does_not_run_is_none(holders: Mapping[int, int]) -> None:
    assert located(VIEW._replace(holders=holders), 0)[:6] == struct.pack(">hi", 15, -1)


# ---- RegisterConsumer -----------------------------------------------------------------------------------------------


@pytest.mark.promise(
    "consumer-protocol.md", "A registration at another sidecar is refused with the one that coordinates the group."
)
def test_a_registration_that_cannot_be_taken_here_is_refused_with_the_one_that_can() -> None:
    assert registered(VIEW) == struct.pack(">hii", 16, 2, -1)
    assert registered(VIEW, 0) == struct.pack(">h", 16)
    assert registered(VIEW._replace(holders={})) == struct.pack(">hii", 15, -1, -1)
    for view in (GroupsView(), HERE._replace(level=0)):
        assert registered(view) == struct.pack(">hii", 15, -1, -1)
    assert registered(HERE, hands_over=False) == struct.pack(">hii", 15, -1, -1)
    # Bytes behind a registration are error 42.
    body = encode_register_consumer_request(1, ASKED) + b"\0"
    assert registered(HERE, 1, body) == struct.pack(">hii", 42, -1, -1)
    assert registered(VIEW, 0, encode_register_consumer_request(0, ASKED) + b"\0") == struct.pack(">h", 42)
    # Nobody is answered before his login.
    anybody = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "", principal_source="unauthenticated")
    body = encode_register_consumer_request(1, ASKED)
    assert ask(interceptor(HERE), REGISTER_CONSUMER, 1, body, anybody) is Disposition.FORWARD
    assert ask(interceptor(HERE), CLUSTER_METADATA, 0, b"", anybody) is Disposition.FORWARD


# ---- the requests of a coordinator ----------------------------------------------------------------------------------


@each(("key", "version"), [(30_010, 0), (30_011, 0), (30_011, 1), (30_012, 0)])
def test_a_client_that_sends_what_a_coordinator_sends_is_closed(key: int, version: int) -> None:
    chain = InterceptorChain([interceptor(HERE)])
    assert chain.on_header(Request(CLIENT, key, version, "c", 1, 1)) is Disposition.CLOSE


# ---- rights ---------------------------------------------------------------------------------------------------------


class Broker:
    """Answers questions: ``denied`` are a group and topics."""

    def __init__(self, *denied: str) -> None:
        self.denied = denied
        self.asked: list[tuple[int, int, bytes]] = []

    async def call(self, api_key: int, api_version: int, body: bytes) -> bytes:
        self.asked.append((api_key, api_version, body))
        (length,) = struct.unpack_from(">h", body)
        group, pos, topics = body[2 : 2 + length].decode(), 2 + length, b""
        if api_key == HEARTBEAT:
            return struct.pack(">h", 30 if group in self.denied else 25)
        assert (api_key, api_version) == (OFFSET_COMMIT, 2)
        assert body[pos:][:24] == struct.pack(">ih10sq", 2**31 - 1, 10, b"brokerside", -1)
        (count,), pos = struct.unpack_from(">i", body, pos + 24), pos + 28
        for _ in range(count):
            (length,) = struct.unpack_from(">h", body, pos)
            name = body[pos + 2 : pos + 2 + length]
            assert body[pos + 2 + length :][:18] == struct.pack(">iiqh", 1, 2**31 - 1, 0, -1)
            pos += 20 + length
            code = 30 if group in self.denied else 29 if name.decode() in self.denied else 3
            topics += struct.pack(">h", length) + name + struct.pack(">iih", 1, 2**31 - 1, code)
        assert pos == len(body)
        return struct.pack(">i", count) + topics


def served(broker: Broker, request: RegisterConsumerRequest = ASKED, version: int = 1) -> object:
    found = registered(HERE, version, encode_register_consumer_request(version, request))
    assert isinstance(found, Deferred)

    async def serve() -> object:
        return await found.serve(broker.call)

    return asyncio.run(serve())


def test_who_may_read_all_is_given_up_with_the_registration() -> None:
    broker = Broker()
    assert served(broker) == GivenUp(Registration(1, 0, "c", ASKED))
    nowhere = "000174" + "00000001" + "7fffffff" + "0000000000000000" + "ffff"
    question = "000167" + "7fffffff" + "000a" + b"brokerside".hex() + "ffffffffffffffff" + "00000001" + nowhere
    assert broker.asked == [(OFFSET_COMMIT, 2, bytes.fromhex(question))]
    # A group alone is asked about with a heartbeat.
    broker = Broker()
    assert isinstance(served(broker, ASKED._replace(topic_count="*1*t.*")), GivenUp)
    question = "000167" + "ffffffff" + "000a" + b"brokerside".hex()
    assert broker.asked == [(HEARTBEAT, 0, bytes.fromhex(question))]


@each("topic_count", ['{"t":1}', "*1*t.*"])
def test_who_may_not_read_the_group_is_error_30(topic_count: str) -> None:
    broker = Broker("g", "t")
    assert served(broker, ASKED._replace(topic_count=topic_count)) == struct.pack(">hii", 30, -1, -1)
    assert len(broker.asked) == 1


@pytest.mark.promise(
    "coordinator.md", "Whoever may not read a group or one of its topics at the broker is not registered."
)
@each("version", [0, 1, 2])
def test_who_may_not_read_one_of_the_topics_is_error_29(version: int) -> None:
    refused = struct.pack(">h", 29) if version == 0 else struct.pack(">hii", 29, -1, -1)
    assert served(Broker("b"), ASKED._replace(topic_count='{"a":1,"b":1,"c":1}'), version) == refused
