import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.exchange import Connection
from proxy.core.interceptor import ON_BODY, Disposition, InterceptorChain, Request
from proxy.errors import PeerError
from proxy.interceptors import broker_metadata
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

KEY = 30_000


def request_frame(body: bytes) -> str:
    """Kafka's request header v1 with correlation id 1 and client id ``c``."""
    head = struct.pack(">hhih", KEY, 0, 1, 1) + b"c"
    return (struct.pack(">i", len(head + body)) + head + body).hex()


def response_frame(body: bytes) -> str:
    return (struct.pack(">ii", 4 + len(body), 1) + body).hex()


class TestGoldenBytes:
    @each(
        ("node_ids", "golden"),
        [([3], "0000001375300000000000010001630000000100000003"), ([], "0000000f753000000000000100016300000000")],
    )
    def test_request(self, node_ids, golden):
        assert request_frame(encode_request(node_ids)) == golden
        assert decode_request(bytes.fromhex(golden)[15:]) == node_ids

    @pytest.mark.promise(
        "broker-metadata.md", "BrokerMetadata has the bytes that its page gives, request and response."
    )
    def test_response(self):
        golden = (
            "0000004200000001000000020000000300016800002384000000280000004d0000000100047261636b0004723861390000000400016800"
            "002385000000280000004d00000000"
        )
        brokers = [BrokerEntry(3, "h", 9092, 40, 77, {"rack": "r8a9"}), BrokerEntry(4, "h", 9093, 40, 77)]

        assert response_frame(encode_response(brokers)) == golden
        assert decode_response(bytes.fromhex(golden)[8:]) == brokers

    def test_null_is_as_empty(self):
        assert decode_request(b"\xff\xff\xff\xff") == []


int32s = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
entries = st.builds(BrokerEntry, int32s, texts, int32s, int32s, int32s, st.dictionaries(texts, texts, max_size=4))


@settings(deadline=None)
@given(st.lists(entries, max_size=4))
def test_whatever_is_written_is_read_again(brokers):
    assert decode_response(encode_response(brokers)) == brokers


@given(st.lists(int32s, max_size=50))
def test_so_are_requests(node_ids):
    assert decode_request(encode_request(node_ids)) == node_ids


@each("body", ["", "000000", "00000001", "0000000100000003ff", "fffffffe", "7fffffff"])
def test_a_request_of_another_length_is_malformed(body):
    with pytest.raises(PeerError):
        decode_request(bytes.fromhex(body))


def test_a_text_that_is_too_long_is_not_written():
    with pytest.raises(ValueError, match=r"a text of 32768 bytes \(allowed: 32767\)"):
        encode_response([BrokerEntry(1, "h", 1, 1, 1, {"x": "x" * 32_768})])


def broker(node_id: int) -> BrokerView:
    addresses = {"client": (f"kafka-{node_id}", 9092), "other": (f"kafka-{node_id}", 9093)}
    return BrokerView(node_id, addresses, 40, 70 + node_id, {"broker.id": str(node_id)})


def asked(*, source="anonymous", version=0) -> Request:
    connection = Connection("c", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source=source)
    return Request(connection, KEY, version, "c", 1, 0)


@pytest.fixture
def fleet():
    return FleetDirectory(FleetView(1, (broker(3), broker(1), broker(2))))


class TestSelection:
    @pytest.mark.promise(
        "broker-metadata.md",
        "No node id asks for all brokers, -1 for the one behind the connection; unknown ids are left out.",
    )
    @each(
        ("wanted", "found"),
        [
            ([], [1, 2, 3]),
            ([-1], [1]),
            ([2, 2, 99, -1], [1, 2]),
            ([3, 1], [1, 3]),
            ([1, -1], [1]),
            ([99], []),
            ([-2], []),
        ],
    )
    def test_which_brokers_are_returned(self, fleet, wanted, found):
        assert [one.node_id for one in fleet.select("CLIENT", wanted)] == found

    def test_a_broker_that_does_not_run_is_not_returned(self, fleet):
        away = BrokerView(2, {"client": ("kafka-2", 9092)}, running=False)
        fleet.view = FleetView(1, (broker(1), away, broker(3)))

        assert [one.node_id for one in fleet.select("CLIENT", [])] == [1, 3]
        assert [one.node_id for one in fleet.select("CLIENT", [2, 3])] == [3]

    @pytest.mark.promise(
        "broker-metadata.md",
        "BrokerMetadata returns addresses of the listener that was asked, or none where they are not known.",
    )
    def test_addresses_are_those_of_the_listener_that_was_asked(self, fleet):
        (client,), (other,), (none,) = (fleet.select(name, [2]) for name in ("CLIENT", "Other", "THIRD"))

        assert client == BrokerEntry(2, "kafka-2", 9092, 40, 72, {"broker.id": "2"})
        assert (other.host, other.port) == ("kafka-2", 9093)
        assert (none.host, none.port) == ("", -1)


class TestInterceptor:
    @pytest.mark.promise("broker-metadata.md", "A version of BrokerMetadata other than 0 is not supported.")
    def test_wants_its_one_version_only(self, fleet):
        rules = InterceptorChain([BrokerMetadataInterceptor(fleet, "CLIENT", KEY, open_to_all=False)])

        wanted = [
            (key, version) for key in (*range(100), KEY, KEY + 1) for version in (-1, 0, 1) if rules.flags(key, version)
        ]
        assert wanted == [(KEY, 0)]
        assert rules.flags(KEY, 0) == ON_BODY

    def test_answers_with_the_view_of_the_moment(self, fleet):
        metadata = BrokerMetadataInterceptor(fleet, "CLIENT", KEY, open_to_all=False)

        before = metadata.on_body(asked(), encode_request([]))
        fleet.view = FleetView(1, (broker(1),))
        after = metadata.on_body(asked(source="sasl"), encode_request([]))

        assert [[one.node_id for one in decode_response(answer)] for answer in (before, after)] == [[1, 2, 3], [1]]

    def test_each_broker_is_encoded_once_for_a_view_whatever_is_asked(self, fleet, monkeypatch):
        encoded = []
        encode = broker_metadata._encode_broker
        monkeypatch.setattr(broker_metadata, "_encode_broker", lambda one: encoded.append(one.node_id) or encode(one))
        metadata = BrokerMetadataInterceptor(fleet, "CLIENT", KEY, open_to_all=False)
        wanted = ([2], [3, 2, 2], [], [-1, 99], [3])

        answers = [metadata.on_body(asked(), encode_request(ids)) for ids in wanted]

        assert encoded == [2, 3, 1]
        assert answers == [encode_response(fleet.select("CLIENT", ids)) for ids in wanted]

    def test_is_not_for_those_who_have_not_logged_in(self, fleet):
        body = encode_request([-1])

        assert BrokerMetadataInterceptor(fleet, "CLIENT", KEY, open_to_all=False).on_body(
            asked(source="unauthenticated"), body
        ) is (Disposition.FORWARD)
        answer = BrokerMetadataInterceptor(fleet, "CLIENT", KEY, open_to_all=True).on_body(
            asked(source="unauthenticated"), body
        )
        assert [one.node_id for one in decode_response(answer)] == [1]

    def test_a_body_that_cannot_be_read_is_the_client_s_fault(self, fleet):
        with pytest.raises(PeerError) as raised:
            BrokerMetadataInterceptor(fleet, "CLIENT", KEY, open_to_all=False).on_body(asked(), b"\0")
        assert (raised.value.side, raised.value.reason) == ("client", "malformed")
