"""Which changes of topics are refused, and what the answer says."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.accessors import Accessors
from proxy.core.apis import APIS, response_header_is_flexible
from proxy.core.encode import encode
from proxy.core.exchange import Connection
from proxy.core.interceptor import ON_BODY, ON_HEADER, ON_TOPICS, Denied, Disposition, Request, Verdict
from proxy.core.protected_topics import PREFIXES, ProtectedTopics
from proxy.core.schema import Layout, layout
from proxy.core.struct import view
from proxy.interceptors.topic_protection import (
    ADD_PARTITIONS_TO_TXN,
    ALTER_PARTITION_REASSIGNMENTS,
    CHANGED_ARRAYS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    MAX_ANSWERED_ITEMS,
    PRODUCE,
    READ,
    TRANSACTION_ARRAYS,
    TXN_OFFSET_COMMIT,
    WRITE_TXN_MARKERS,
    TopicProtection,
)
from tests.cases import each

ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 33, 44
CONNECTION = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
GUARDED, HONEST = "__brokerside_registry", "orders"
ID = b"\7" * 16


class Bench:
    def __init__(self) -> None:
        self.refused: list[Request] = []
        topics = ProtectedTopics(["audit"])
        topics.ids.add(ID)
        self.protected = TopicProtection(topics, self.refused.append)

    def ask(self, key: int, version: int, values: Mapping[str, Any] | bytes) -> Verdict:
        made = layout(key, version, response=False)
        body = values if isinstance(values, bytes) else encode(made, values)
        return self.protected.on_body(Request(CONNECTION, key, version, "c", 1, 0), body)

    def answer(self, key: int, version: int, values: Mapping[str, Any]) -> Accessors:
        verdict = self.ask(key, version, values)
        assert isinstance(verdict, Denied)
        header = b"\0" if response_header_is_flexible(key, version) else b""
        assert verdict.body.startswith(header)
        body = verdict.body[len(header) :]
        answer = view(key, version, body, response=True)
        assert len(body) == answer.size_of()
        return answer


def resources(*names: str, kind: int = 2) -> dict[str, Any]:
    return {"Resources": [{"ResourceType": kind, "ResourceName": name} for name in names]}


def values_of(key: int, *names: str) -> dict[str, Any]:
    """A request of any version that changes these topics."""
    if key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS):
        return resources(*names)
    one = [{"PartitionIndex": 0}, {"PartitionIndex": 4}]
    nested = key in (DELETE_RECORDS, ALTER_PARTITION_REASSIGNMENTS)
    topics = [{"Name": name, "Partitions": one if nested else (0, 4)} for name in names]
    transactions = [{"TransactionalId": "t", "Topics": topics}]
    return {"Topics": topics, "TopicNames": names, "V3AndBelowTopics": topics, "Transactions": transactions}


VERSIONS = [
    (key, version) for key in CHANGED_ARRAYS for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]


def leaves(value: Any, name: str) -> list[Any]:
    if isinstance(value, tuple):
        return [found for one in value for found in leaves(one, name)]
    if not isinstance(value, Accessors):
        return []
    found = [value.get(name)] if value.has_field(name) else []
    return found + [one for field in value.field_names() for one in leaves(value.get(field), name)]


@pytest.mark.promise(
    "protected-topics.md", "Each item of a refused admin request is answered with TOPIC_AUTHORIZATION_FAILED."
)
@each(("key", "version"), VERSIONS)
def test_every_version_is_answered_for_every_item(key: int, version: int) -> None:
    bench = Bench()
    answer = bench.answer(key, version, values_of(key, HONEST, GUARDED))
    names = leaves(answer, "ResourceName" if key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS) else "Name")
    assert names == [HONEST, GUARDED]
    found = leaves(answer, "PartitionErrorCode") or leaves(answer, "ErrorCode")
    nested = key in (DELETE_RECORDS, ADD_PARTITIONS_TO_TXN, ALTER_PARTITION_REASSIGNMENTS)
    assert [code for code in found if code] == [29] * (4 if nested else 2)
    assert leaves(answer, "PartitionIndex") in ([], [0, 4, 0, 4])
    assert [request.api_key for request in bench.refused] == [key]
    assert bench.ask(key, version, values_of(key, HONEST, "my-brokerside-topic")) is Disposition.FORWARD
    assert len(bench.refused) == 1


def test_protected_are_prefixes_the_audit_s_topic_and_known_ids_and_only_topics_count() -> None:
    for name in ("brokerside-", "__brokerside_x", "audit"):
        assert Bench().answer(CREATE_TOPICS, 7, values_of(CREATE_TOPICS, name)), name
    answer = Bench().answer(DELETE_TOPICS, 6, {"Topics": [{"Name": None, "TopicId": ID}]})
    (one,) = answer.get("Responses")
    assert (one.get("Name"), one.get("TopicId"), one.get("ErrorCode")) == (None, "BwcHBwcHBwcHBwcHBwcHBw", 29)
    assert Bench().ask(DELETE_TOPICS, 6, {"Topics": [{"Name": None, "TopicId": b"\1" * 16}]}) is Disposition.FORWARD
    # Only topics count.
    for kind in (4, 8, 32):  # a broker, its loggers, a group
        assert Bench().ask(INCREMENTAL_ALTER_CONFIGS, 1, resources(GUARDED, kind=kind)) is Disposition.FORWARD
    values = {"Resources": [{"ResourceType": 2, "ResourceName": HONEST, "Configs": [{"Name": "x", "Value": GUARDED}]}]}
    assert Bench().ask(ALTER_CONFIGS, 2, values) is Disposition.FORWARD
    # What is wanted.
    wants = Bench().protected.flags
    changing = {19, 20, 21, 24, 33, 37, 44, 45}
    assert {*CHANGED_ARRAYS} == changing, "all that change records, the configuration or the replicas of a topic"
    assert [wants(PRODUCE, version) & ~ON_HEADER for version in (0, 13)] == [ON_TOPICS] * 2
    assert all(wants(key, version) == ON_BODY for key, version in VERSIONS)
    assert all(wants(key, APIS[key].max_version + 1) & ON_HEADER for key in (PRODUCE, *READ))
    assert not any(wants(key, 0) for key in APIS if key not in (PRODUCE, WRITE_TXN_MARKERS, *READ))


TRANSACTIONAL = [
    (key, version) for key in TRANSACTION_ARRAYS for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]


@pytest.mark.promise("protected-topics.md", "No client may use a transactional id of the sidecars.")
@each(("key", "version"), TRANSACTIONAL)
def test_transactional_ids_of_the_sidecars_are_theirs(key: int, version: int) -> None:
    def values(transactional_id: str) -> dict[str, Any]:
        topics = [{"Name": HONEST, "Partitions": (0, 4) if key == ADD_PARTITIONS_TO_TXN else [{"PartitionIndex": 4}]}]
        ids = dict.fromkeys(("TransactionalId", "V3AndBelowTransactionalId"), transactional_id)
        batch = [{"TransactionalId": transactional_id, "Topics": topics}]
        return {**ids, "GroupId": GUARDED, "Topics": topics, "V3AndBelowTopics": topics, "Transactions": batch}

    bench = Bench()
    answer = bench.answer(key, version, values("brokerside-groups-3"))
    batched = key == ADD_PARTITIONS_TO_TXN and version >= 4
    found = leaves(answer, "PartitionErrorCode") or [code for code in leaves(answer, "ErrorCode") if code]
    assert {*found} == {29 if batched else 53}
    assert leaves(answer, "ProducerId") in ([], [-1])
    assert [request.api_key for request in bench.refused] == [key]
    assert bench.ask(key, version, values("orders-brokerside-1")) is Disposition.FORWARD
    long = {**values("brokerside-features-0"), "Topics": [{"Name": "t" * 200, "Partitions": [{}]}] * 5}
    assert bench.ask(TXN_OFFSET_COMMIT, 3, long) == Denied(None)
    many = {**values("orders"), "Topics": [{"Name": "brokerside-audit", "Partitions": [{}]}] * 50}
    assert bench.ask(TXN_OFFSET_COMMIT, 3, many) is Disposition.FORWARD, "offsets of the audit may be committed"


NAMES_WHAT = re.compile("Topic|Transactional|Group|Producer|ResourceName|^Name$|CoordinatorKey")
"""Names of fields that name a topic, a transaction, a group, a producer, or a resource."""

HARMLESS = {
    "reads": {1, 2, 3, 9, 10, 15, 23, 29, 32, 35, 46, 50, 55, 61, 65, 66, 69, 75, 77, 78, 84, 87, 89, 90},
    "changes groups; the sidecars have none in Kafka": {
        8,
        11,
        12,
        13,
        14,
        42,
        47,
        68,
        76,
        79,
        83,
        85,
        86,
        88,
        91,
        92,
        93,
    },
    "changes no record: rights, users, leaders, folders": {30, 31, 34, 43, 51},
    "served by no broker's listener": {4, 5, 6, 52, 53, 54, 56, 59, 62, 63, 70, 73, 82},
    "names listeners": {80},
}
"""The other apis that have such a field, and why they pass. Metadata and the groups of Streams may create a topic, as
the sidecars have done before."""


def test_every_api_that_names_something_is_judged() -> None:
    def naming(message: Layout) -> bool:
        return any(
            NAMES_WHAT.search(field.name) or (field.layout is not None and naming(field.layout))
            for field in (*message.ordered, *message.tagged.values())
        )

    every = {
        key
        for key, api in APIS.items()
        for version in range(api.min_version, api.max_version + 1)
        if naming(layout(key, version, response=False))
    }
    judged = [PRODUCE, WRITE_TXN_MARKERS, *READ, *(key for keys in HARMLESS.values() for key in keys)]
    assert every - {*judged} == set(), "apis of a newer Kafka that nobody has looked at"
    for key in HARMLESS["served by no broker's listener"]:
        assert "broker" not in APIS[key].listeners


@pytest.mark.promise("protected-topics.md", "WriteTxnMarkers passes where brokers talk to each other alone.")
def test_only_brokers_end_the_transactions_of_others() -> None:
    bench = Bench()
    for version in (1, 2):
        assert bench.protected.flags(WRITE_TXN_MARKERS, version) == ON_HEADER
    assert bench.protected.on_header(Request(CONNECTION, WRITE_TXN_MARKERS, 1, "c", 1, 0)) is Disposition.CLOSE
    bench.protected.inter_broker = True
    assert bench.protected.flags(WRITE_TXN_MARKERS, 1) == 0


@pytest.mark.promise(
    "protected-topics.md", "A refused admin request of more than 50 items or 512 bytes ends the connection."
)
def test_what_cannot_be_answered_in_bounds_ends_the_connection() -> None:
    bench = Bench()
    assert bench.answer(DELETE_TOPICS, 5, {"TopicNames": ["audit"] * MAX_ANSWERED_ITEMS})
    assert bench.ask(DELETE_TOPICS, 5, {"TopicNames": ["audit"] * (MAX_ANSWERED_ITEMS + 1)}) == Denied(None)
    assert bench.ask(DELETE_TOPICS, 5, {"TopicNames": ["t" * 100] * 200 + [GUARDED]}) == Denied(None)
    assert bench.ask(DELETE_TOPICS, 5, {"TopicNames": ["t" * 100] * 200}) is Disposition.FORWARD
    partitions = [{"PartitionIndex": at} for at in range(MAX_ANSWERED_ITEMS)]
    assert bench.ask(DELETE_RECORDS, 2, {"Topics": [{"Name": GUARDED, "Partitions": partitions}]}) == Denied(None)
    assert len(bench.refused) == 4


LONG = ["t" * 100] * 20


@each("length", [b"\x16", b"\x96\0", b"\x96\x80\0", b"\x96\x80\x80\x80\0", b"\x96\x80\x80\x80\x70"])
def test_a_name_is_found_however_its_length_is_encoded(length: bytes) -> None:
    """The last one is 22 in Java, which drops what is above 32 bits."""
    body = encode(layout(DELETE_TOPICS, 5, response=False), {"TopicNames": [*LONG, GUARDED]})
    assert body.count(b"\x16" + GUARDED.encode()) == 1
    other = body.replace(b"\x16" + GUARDED.encode(), length + GUARDED.encode())
    assert Bench().ask(DELETE_TOPICS, 5, other) == Denied(None)


PARTS = st.sampled_from(
    ["brokerside", "brokerside-", "__brokerside_", "audit", "-", "_", "x", "my", "t" * 40, "y" * 120]
)
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("".join).filter(lambda name: len(name) <= 249)


LEAST_AMBIGUOUS = ord("-") - 1
"""The lowest length whose byte is a character of a topic's name."""


def may_look_protected(name: str) -> bool:
    """Whether a protected name may seem to begin within ``name``: the character before it looks like its length."""
    ends = ((prefix.decode(), len(name) - LEAST_AMBIGUOUS + len(prefix)) for prefix in PREFIXES)
    return any(prefix in name[1 : max(end, 0)] for prefix, end in ends)


@pytest.mark.promise(
    "protected-topics.md", "A long admin request that names no topic like a protected one passes unread."
)
@given(names=st.lists(NAMES, min_size=1, max_size=3), at=st.sampled_from(VERSIONS))
@example(names=["audit" + "y" * 120], at=(DELETE_TOPICS, 5))
@example(names=["brokersidebrokerside-" + "y" * 120], at=(CREATE_TOPICS, 7))
def test_a_long_request_is_judged_as_if_it_were_read(names: list[str], at: tuple[int, int]) -> None:
    """But one may be refused for a name that has a protected name in it: the message is not read."""
    bench = Bench()
    verdict = bench.ask(*at, values_of(at[0], *LONG, *names))
    if any(bench.protected.topics.has(name.encode()) for name in names):
        assert verdict == Denied(None)
    elif not any(may_look_protected(name) for name in names):
        assert verdict is Disposition.FORWARD


def test_a_long_request_with_a_protected_topic_id_or_too_many_look_alikes_ends_the_connection() -> None:
    by_id = {"Topics": [{"Name": name} for name in LONG] + [{"Name": None, "TopicId": ID}]}
    assert Bench().ask(DELETE_TOPICS, 6, by_id) == Denied(None)
    assert Bench().ask(DELETE_TOPICS, 5, {"TopicNames": ["x" + "brokerside-" * 20] * 60}) == Denied(None)
