"""Answers below were recorded from a broker of Kafka 4.3.1."""

import struct

import pytest

from proxy.config import Endpoint
from proxy.errors import MalformedBody
from proxy.rpc import messages
from proxy.rpc.messages import RequestRefused
from tests.cases import each

THREE_BROKERS = bytes.fromhex(
    "00000003"  # three brokers: node, host, port, rack
    "0000000100016100002384ffff"
    "0000000200000000238400047261636b"
    "0000012c0004686f7374000023840000"
)  # fmt: skip
BROKERS = bytes.fromhex("000000010000000100093132372e302e302e310000670dffff0000000100000000")
QUOTAS = bytes.fromhex(
    "000000000000000000000002000000010002697000033a3a31000000010018636f6e6e656374696f6e5f6372656174696f6e5f72617465"
    "4014000000000000000000010002697000093132372e302e302e39000000010018636f6e6e656374696f6e5f6372656174696f6e5f72617465"
    "4014000000000000"
)
DENIED = bytes.fromhex("00000000001fffffffffffff")
ALTERED = bytes.fromhex("00000000000000010000ffff000000010002697000093132372e302e302e39")
HALF_ALTERED = bytes.fromhex(
    "00000000000000020000ffff0000000100026970000831302e302e302e39002a003239332e3238342e35332e3133206973206e6f7420612076"
    "616c6964204950206f72207265736f6c7661626c6520686f73742e0000000100026970000c39332e3238342e35332e3133"
)
CONFIGS = bytes.fromhex(
    "0000000000000001000000000400013100000003001c6d61782e636f6e6e656374696f6e2e6372656174696f6e2e72617465000a"
    "3231343734383336343700050000000000000f6d61782e636f6e6e656374696f6e73000a3231343734383336343700050000000000"
    "00206d61782e636f6e6e656374696f6e732e7065722e69702e6f7665727269646573000000050000000000"
)
OTHER_BROKER = bytes.fromhex(
    "0000000000000001002a0040556e65787065637465642062726f6b65722069642c2065787065637465642031206f7220656d707479"
    "20737472696e672c2062757420726563656976656420320400013200000000"
)
HANDSHAKE = bytes.fromhex("00000000000100055052414e44")
TOKEN = bytes.fromhex("0000ffff00000003613d62")

READERS = [
    (messages.decode_brokers, BROKERS[:-8]),  # what follows is not read
    (messages.decode_brokers, THREE_BROKERS),
    (lambda answer: list(messages.decode_ip_quotas(answer)), QUOTAS),
    (messages.check_quotas_altered, ALTERED),
    (messages.decode_broker_configs, CONFIGS),
    (messages.check_sasl_handshake, HANDSHAKE),
    (messages.decode_sasl_token, TOKEN),
]


def test_answers_of_a_broker() -> None:
    assert messages.decode_brokers(BROKERS) == {1: Endpoint("127.0.0.1", 26381)}
    assert messages.decode_brokers(THREE_BROKERS + b"controller, topics") == {
        1: Endpoint("a", 9092),
        2: Endpoint("", 9092),
        300: Endpoint("host", 9092),
    }
    assert list(messages.decode_ip_quotas(QUOTAS)) == [("::1", 5.0), ("127.0.0.9", 5.0)]
    assert messages.decode_broker_configs(CONFIGS) == {
        "max.connection.creation.rate": "2147483647",
        "max.connections": "2147483647",
        "max.connections.per.ip.overrides": "",
    }
    assert messages.decode_sasl_token(TOKEN) == b"a=b"
    messages.check_quotas_altered(ALTERED)
    messages.check_sasl_handshake(HANDSHAKE)
    # The default quota has no name and other entities are passed over.
    default = QUOTAS.replace(b"\0\x02ip\0\x03::1", b"\0\x02ip\xff\xff")
    assert next(messages.decode_ip_quotas(default)) == (None, 5.0)
    user = QUOTAS.replace(b"\0\x02ip\0\x03::1", b"\0\x04user\0\x03::1")
    assert list(messages.decode_ip_quotas(user)) == [None, ("127.0.0.9", 5.0)]


@pytest.mark.promise("log-events.md", "A refusal of the cluster is logged with the request, the reason and its code.")
@each(
    ("reader", "answer", "code", "said"),
    [
        (lambda answer: list(messages.decode_ip_quotas(answer)), DENIED, 31, "DescribeConfigs"),
        (messages.check_quotas_altered, HALF_ALTERED, 42, "93.284.53.13 is not a valid IP or resolvable host."),
        (messages.decode_broker_configs, OTHER_BROKER, 42, "expected 1"),
        (messages.check_sasl_handshake, b"\0\x21" + HANDSHAKE[2:], 33, "only PRAND"),
        (messages.check_sasl_handshake, b"\0\x22\0\0\0\0", 34, "SASL"),
        (messages.decode_sasl_token, b"\0\x3a\0\x02no\0\0\0\0", 58, "SASL: no"),
    ],
)
def test_a_refusal_says_what_and_why(reader, answer: bytes, code: int, said: str) -> None:
    with pytest.raises(RequestRefused, match=said) as refused:
        reader(answer)
    assert refused.value.code == code


@each(("reader", "answer"), READERS)
def test_an_answer_that_is_cut_anywhere_is_malformed(reader, answer: bytes) -> None:
    for length in range(len(answer)):
        with pytest.raises(MalformedBody):
            reader(answer[:length])


@each("parts", [(101, 0), (0, 101)])
def test_one_quota_of_very_many_parts_is_malformed(parts: tuple[int, int]) -> None:
    answer = struct.pack(">ihhi", 0, 0, -1, 1) + b"".join(
        struct.pack(">i", count) + bytes(10 * count) for count in parts
    )
    with pytest.raises(MalformedBody):
        list(messages.decode_ip_quotas(answer))


@each(("named", "node_id"), [("2147483647", 2_147_483_647), ("2147483648", None), ("12345678901", None)])
def test_another_broker_names_itself_with_an_int32(named: str, node_id: int | None) -> None:
    error = f"Unexpected broker id, expected {named} or empty string, but received 1".encode()
    answer = struct.pack(">iihh", 0, 1, 42, len(error)) + error

    assert messages.decode_other_broker(answer) == node_id
