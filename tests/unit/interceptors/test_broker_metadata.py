import pytest

from proxy.core.exchange import Connection
from proxy.core.interceptor import ON_BODY, Disposition, InterceptorChain, Request
from proxy.errors import PeerError
from proxy.interceptors.broker_metadata import (
    BrokerEntry,
    BrokerMetadataInterceptor,
    BrokerView,
    FleetDirectory,
    FleetView,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.cases import each
from tests.frames import request, response

KEY = 30_000


@pytest.mark.promise("broker-metadata.md", "BrokerMetadata has the bytes that its page gives, request and response.")
def test_golden_bytes():
    for node_ids, golden in (
        ([3], "0000001375300000000000010001630000000100000003"),
        ([], "0000000f753000000000000100016300000000"),
    ):
        assert request(KEY, 0, 1, encode_request(node_ids)).hex() == golden
        assert decode_request(bytes.fromhex(golden)[15:]) == node_ids
    assert decode_request(b"\xff\xff\xff\xff") == [], "null is as empty"
    golden = (
        "0000004200000001000000020000000300016800002384000000280000004d0000000100047261636b0004723861390000000400016800"
        "002385000000280000004d00000000"
    )
    brokers = [BrokerEntry(3, "h", 9092, 40, 77, {"rack": "r8a9"}), BrokerEntry(4, "h", 9093, 40, 77)]
    assert response(1, encode_response(brokers)).hex() == golden
    assert decode_response(bytes.fromhex(golden)[8:]) == brokers


@each("body", ["", "000000", "00000001", "0000000100000003ff", "fffffffe", "7fffffff"])
def test_a_request_of_another_length_is_malformed(body):
    with pytest.raises(PeerError):
        decode_request(bytes.fromhex(body))


def broker(node_id: int) -> BrokerView:
    addresses = {"client": (f"kafka-{node_id}", 9092), "other": (f"kafka-{node_id}", 9093)}
    return BrokerView(node_id, addresses, 40, 70 + node_id, {"broker.id": str(node_id)})


def asked(*, source="anonymous", version=0) -> Request:
    connection = Connection("c", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source=source)
    return Request(connection, KEY, version, "c", 1, 0)


@pytest.fixture
def fleet():
    return FleetDirectory(FleetView(1, (broker(3), broker(1), broker(2))))


@pytest.mark.promise(
    "broker-metadata.md",
    "No node id asks for all brokers, -1 for the one behind the connection; unknown ids are left out.",
)
def test_which_brokers_are_returned(fleet):
    for wanted, found in (
        ([], [1, 2, 3]),
        ([-1], [1]),
        ([2, 2, 99, -1], [1, 2]),
        ([3, 1], [1, 3]),
        ([1, -1], [1]),
        ([99], []),
        ([-2], []),
    ):
        assert [one.node_id for one in fleet.select("CLIENT", wanted)] == found, wanted
    fleet.view = FleetView(1, (broker(1), BrokerView(2, {"client": ("kafka-2", 9092)}, running=False), broker(3)))
    assert [one.node_id for one in fleet.select("CLIENT", [])] == [1, 3]
    assert [one.node_id for one in fleet.select("CLIENT", [2, 3])] == [3]


@pytest.mark.promise(
    "broker-metadata.md",
    "BrokerMetadata returns addresses of the listener that was asked, or none where they are not known.",
)
def test_addresses_are_those_of_the_listener_that_was_asked(fleet):
    (client,), (other,), (none,) = (fleet.select(name, [2]) for name in ("CLIENT", "Other", "THIRD"))
    assert client == BrokerEntry(2, "kafka-2", 9092, 40, 72, {"broker.id": "2"})
    assert (other.host, other.port) == ("kafka-2", 9093)
    assert (none.host, none.port) == ("", -1)


@pytest.mark.promise("broker-metadata.md", "A version of BrokerMetadata other than 0 is not supported.")
def test_one_version_is_answered_with_the_view_of_the_moment_to_those_who_have_logged_in(fleet):
    metadata = BrokerMetadataInterceptor(fleet, "CLIENT", KEY, open_to_all=False)
    rules = InterceptorChain([metadata])
    keys = (*range(100), KEY, KEY + 1)
    assert [(key, version) for key in keys for version in (-1, 0, 1) if rules.flags(key, version)] == [(KEY, 0)]
    assert rules.flags(KEY, 0) == ON_BODY
    before = metadata.on_body(asked(), encode_request([]))
    fleet.view = FleetView(1, (broker(1),))
    after = metadata.on_body(asked(source="sasl"), encode_request([]))
    assert [[one.node_id for one in decode_response(answer)] for answer in (before, after)] == [[1, 2, 3], [1]]
    assert metadata.on_body(asked(source="unauthenticated"), encode_request([-1])) is Disposition.FORWARD
    open_to_all = BrokerMetadataInterceptor(fleet, "CLIENT", KEY, open_to_all=True)
    answer = open_to_all.on_body(asked(source="unauthenticated"), encode_request([-1]))
    assert [one.node_id for one in decode_response(answer)] == [1]
    with pytest.raises(PeerError) as raised:
        metadata.on_body(asked(), b"\0")
    assert (raised.value.side, raised.value.reason) == ("client", "malformed")
