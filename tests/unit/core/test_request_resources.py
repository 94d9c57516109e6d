"""What requests are about: of every version of every api, whole and in pieces; and its result in the event."""

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.event import RequestEvent, Resource
from observers.topic_names import TopicNames
from proxy.compiled.exchange import DecodeCode, Exchange, Kind
from proxy.compiled.walk_door import new_feed, read_whole
from proxy.core.apis import APIS
from proxy.core.budget import PARTITION
from proxy.core.encode import encode
from proxy.core.exchange import Connection, ItemErrorFacts, ItemErrors, RequestResources
from proxy.core.instructions import RESOURCE_TYPES
from proxy.core.names import MAX_NAME
from proxy.core.request_resources import MAX_KEPT_CHANGED, MAX_KEPT_COMMITS, MAX_KEPT_RESOURCES, OPERATIONS, WALKED
from proxy.core.schema import layout
from proxy.errors import MalformedBody
from tests.cases import each
from tests.oracle import read_resources
from tests.tools import random_messages

TOPIC_ID = bytes(range(1, 17))
VERSIONS = [
    (key, version)
    for key in sorted(OPERATIONS.keys() - WALKED)
    for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]


def exchange(key: int, version: int, **reported: Any) -> Exchange:
    client = Connection("c1", "CLIENT", "10.0.0.7", 40000, 1.0, "User:app")
    return Exchange(client, key, version, 5, "app", 100.0, 50, 100.002, 80, "answered", **reported)


def read(key: int, version: int, body: bytes, pieces: int = 0) -> RequestResources:
    """What the request is about; read in pieces of as many bytes, or whole."""
    reported = exchange(key, version)
    if not pieces:
        charged = read_whole(reported, Kind.REQUEST_RESOURCES, False, body, 0, len(body))
    else:
        feed = new_feed(Kind.REQUEST_RESOURCES, key, version)
        for at in range(0, len(body), pieces):
            feed.feed(body, at, min(at + pieces, len(body)))
        charged = feed.finish_into(reported, False)
    found = reported.resources
    assert [found, charged] == read_resources(key, version, body)
    return found


@each(("key", "version"), VERSIONS)
def test_every_request_is_read_whole_and_in_pieces(key: int, version: int) -> None:
    rng = Random(f"{key} {version}")
    for number in range(3):
        body = random_messages.draw(rng, key, version, False, tame=bool(number % 2)).body
        found = read(key, version, body)
        assert all(found == read(key, version, body, pieces) for pieces in (1, 50) if body)
        assert all(item.resource_type in RESOURCE_TYPES for item in found.items)
        if body:
            with pytest.raises(MalformedBody):
                read(key, version, body[:-1])
        with pytest.raises(MalformedBody):
            read(key, version, body + b"\0")


def test_every_api_of_clients_has_an_operation() -> None:
    of_brokers = {4, 5, 6, 7, 27, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 83, 84, 85, 86, 87}
    of_connections = {17, 18, 36, 71, 72}
    assert OPERATIONS.keys() | of_brokers | of_connections == APIS.keys()
    assert not OPERATIONS.keys() & (of_brokers | of_connections)


ASKED: dict[str, tuple[int, int, Mapping[str, Any], list[tuple[str, str | None, str | None, str | None]]]] = {
    "topics are created": (
        19, 7,
        {"Topics": [{"Name": "orders", "Configs": [{"Name": "retention.ms", "Value": "7"}]}, {"Name": "clicks"}]},
        [("topic", "orders", None, None), ("config", "retention.ms", "topic", "orders"),
         ("topic", "clicks", None, None)],
    ),
    "topics are deleted": (20, 5, {"TopicNames": ["orders"]}, [("topic", "orders", None, None)]),
    "settings are changed": (
        44, 1,
        {"Resources": [{"ResourceType": 4, "ResourceName": "1", "Configs": [{"Name": "log.cleaner.threads"}]}]},
        [("broker", "1", None, None), ("config", "log.cleaner.threads", "broker", "1")],
    ),
    "access is granted": (
        30, 3,
        {"Creations": [{"ResourceType": 2, "ResourceName": "orders", "Principal": "User:bob", "Host": "*"}]},
        [("topic", "orders", None, None), ("user", "User:bob", "topic", "orders")],
    ),
    "access is taken away": (
        31, 3,
        {"Filters": [{"ResourceTypeFilter": 3, "ResourceNameFilter": None, "PrincipalFilter": "User:bob"}]},
        [("group", None, None, None), ("user", "User:bob", "group", None)],
    ),
    "access of everybody is taken away": (
        31, 3,
        {"Filters": [{"ResourceTypeFilter": 2, "ResourceNameFilter": "orders", "PrincipalFilter": None}]},
        [("topic", "orders", None, None), ("user", None, "topic", "orders")],
    ),
    "quotas are changed": (
        49, 1,
        {"Entries": [{"Entity": [{"EntityType": "user", "EntityName": None},
                                 {"EntityType": "client-id", "EntityName": "app"}],
                      "Ops": [{"Key": "request_percentage"}]}]},
        [("user", None, None, None), ("client-id", "app", None, None), ("config", "request_percentage", None, None)],
    ),
    "passwords are changed": (
        51, 0,
        {"Deletions": [{"Name": "eve"}], "Upsertions": [{"Name": "bob", "SaltedPassword": b"secret", "Salt": b"s"}]},
        [("user", "eve", None, None), ("user", "bob", None, None)],
    ),
    "groups are deleted": (42, 2, {"GroupsNames": ["g", "h"]},
                           [("group", "g", None, None), ("group", "h", None, None)]),
    "offsets are deleted": (
        47, 0, {"GroupId": "g", "Topics": [{"Name": "orders"}]},
        [("group", "g", None, None), ("topic", "orders", "group", "g")],
    ),
    "features are raised": (57, 2, {"FeatureUpdates": [{"Feature": "metadata.version"}]},
                            [("feature", "metadata.version", None, None)]),
    "a broker is removed": (64, 0, {"BrokerId": 7}, [("broker", "7", None, None)]),
    "members are removed": (13, 5, {"GroupId": "g", "Members": [{"MemberId": "m"}]},
                            [("group", "g", None, None), ("member", "m", "group", "g")]),
    "transactions are described": (65, 0, {"TransactionalIds": ["pay"]}, [("transactional_id", "pay", None, None)]),
    "a transaction sends offsets": (25, 4, {"TransactionalId": "pay", "GroupId": "g"},
                                    [("transactional_id", "pay", None, None), ("group", "g", None, None)]),
    "the cluster is described": (60, 2, {}, [("cluster", None, None, None)]),
    "a token is made": (38, 3, {"OwnerPrincipalName": "bob"}, [("user", "bob", None, None)]),
}  # fmt: skip


@pytest.mark.promise("changes.md", "An event names each resource that a request is about, with its parent.")
@each(("key", "version", "asked", "expected"), ASKED.values())
def test_resources(key, version, asked, expected) -> None:
    body = encode(layout(key, version, response=False), asked)
    found = read(key, version, body)
    assert [
        (one.resource_type, text(one.resource_name), one.parent_type, text(one.parent_name)) for one in found.items
    ] == expected
    assert found.count == len(expected)


def text(name: bytes | None) -> str | None:
    return None if name is None else name.decode()


VALUES: dict[str, tuple[int, int, Mapping[str, Any]]] = {
    "passwords": (51, 0, {"Upsertions": [{"Name": "bob", "Mechanism": 2, "Iterations": 8_192,
                                          "Salt": b"CANARY", "SaltedPassword": b"CANARY"}]}),
    "settings of a new topic": (19, 7, {"Topics": [{"Name": "a", "Configs": [{"Name": "b", "Value": "CANARY"}]}]}),
    "settings": (33, 2, {"Resources": [{"ResourceName": "a", "Configs": [{"Name": "b", "Value": "CANARY"}]}]}),
    "changed settings": (44, 1, {"Resources": [{"ResourceName": "a", "Configs": [
        {"Name": "b", "ConfigOperation": 2, "Value": "CANARY"}]}]}),
    "quotas": (49, 1, {"Entries": [{"Ops": [{"Key": "a", "Value": 8_192.0, "Remove": False}]}]}),
    "levels of features": (57, 2, {"FeatureUpdates": [{"Feature": "a", "MaxVersionLevel": 8_192}]}),
    "numbers of partitions": (37, 3, {"Topics": [{"Name": "a", "Count": 8_192}]}),
    "tokens": (40, 2, {"Hmac": b"CANARY", "ExpiryTimePeriodMs": 8_192}),
}  # fmt: skip


@pytest.mark.promise("changes.md", "No value of a setting, quota, password or token is in an event of a change.")
@each(("key", "version", "asked"), VALUES.values())
def test_no_value_is_reported(key: int, version: int, asked: Mapping[str, Any]) -> None:
    reported = asked_for(key, version, asked)
    for shown in (str(reported), str(event_of(reported))):
        assert "CANARY" not in shown
        assert "8192" not in shown


MATCHED = {
    "FilterResults": [
        {"MatchingAcls": [
            {"ResourceType": 2, "ResourceName": "orders", "PatternType": 3, "Principal": "User:bob", "Host": "*",
             "Operation": 3, "PermissionType": 3},
            {"ErrorCode": 40, "ErrorMessage": "no", "ResourceType": 3, "ResourceName": "g", "PatternType": 4,
             "Principal": "User:eve", "Host": "::1", "Operation": 2, "PermissionType": 2},
        ]},
        {"ErrorCode": 42},
    ]
}  # fmt: skip


@pytest.mark.promise("changes.md", "An event of deleted ACLs names those that the broker has deleted.")
@each("pieces", [0, 1, 50])
def test_acls_that_were_deleted_are_those_of_the_response(pieces: int) -> None:
    asked = {"Filters": [{"ResourceTypeFilter": 1, "PatternTypeFilter": 1, "Operation": 1, "PermissionType": 1}] * 2}
    reported = asked_for(31, 3, asked)
    body = encode(layout(31, 3, response=True), MATCHED)
    if pieces:
        feed = new_feed(Kind.RESPONSE_ERRORS, 31, 3)
        for at in range(0, len(body), pieces):
            feed.feed(body, at, min(at + pieces, len(body)))
        charged = feed.finish_into(reported, True)
    else:
        charged = read_whole(reported, Kind.RESPONSE_ERRORS, True, body, 0, len(body))
    errors = reported.item_errors
    assert (errors.matching_acl_count, errors.failures, [one.error_code for one in errors.items]) == (2, 2, [40, 42])
    assert charged == (2 * 2 + 2) * (PARTITION + 2 * MAX_NAME)
    event = event_of(reported)
    assert (event.resource_count, len(event.resources)) == (6, 6)
    assert event.resources[4:] == (
        Resource("user", "User:bob", None, "topic", "orders", 0, "DELETE", acl_pattern_type="LITERAL",
                 acl_host="*", acl_operation="Read", acl_permission_type="ALLOW"),
        Resource("user", "User:eve", None, "group", "g", 40, "DELETE", acl_pattern_type="PREFIXED",
                 acl_host="::1", acl_operation="All", acl_permission_type="DENY"),
    )  # fmt: skip
    without = event_of(reported, "orders")  # ACLs of an excluded topic are left out
    assert [(one.parent_type, one.parent_name) for one in without.resources[4:]] == [("group", "g")]
    assert without.resource_count == 5
    reported.drop_facts(True)
    assert event_of(reported).resource_count == 4


def test_what_is_not_kept_is_counted() -> None:
    found = read(3, 1, encode(layout(3, 1, response=False), {"Topics": [{"Name": "t"}] * 500}))
    assert (len(found.items), found.count) == (MAX_KEPT_RESOURCES, 500)
    parts = [{"PartitionIndex": n, "CommittedOffset": n} for n in range(3_000)]
    asked = {"GroupId": "g", "Topics": [{"Name": "t", "Partitions": parts}]}
    found = read(8, 2, encode(layout(8, 2, response=False), asked))
    assert (len(found.commits), found.commit_count) == (MAX_KEPT_COMMITS, 3_000)


def event_of(reported: Exchange, *excluded: str) -> RequestEvent:
    names = TopicNames(lambda: {TOPIC_ID: "orders"}, clock=lambda: 0.0, sleep=lambda seconds: None)
    names.name_of(TOPIC_ID)
    made = RequestEventEncoder({}, names, AuditFilter(names, topics=set(excluded), principals=set()))
    (chunk,) = made.encode_exchanges([reported], 1, 0.0).chunks
    return msgspec.json.decode(chunk.json, type=RequestEvent)


def asked_for(key: int, version: int, asked: Mapping[str, Any], **reported: Any) -> Exchange:
    body = encode(layout(key, version, response=False), asked)
    made = exchange(key, version, **reported)
    read_whole(made, Kind.REQUEST_RESOURCES, False, body, 0, len(body))
    return made


def refused(kind: str, name: bytes | None, code: int, index: int = 0, topic_id: bytes | None = None) -> ItemErrors:
    return ItemErrors((ItemErrorFacts(code, kind, name, topic_id, -1, index, None, None),), 1, 0, 0)


TWO = {"Topics": [{"Name": "orders", "Configs": [{"Name": "retention.ms"}]}, {"Name": "clicks"}], "validateOnly": True}


@pytest.mark.promise("changes.md", "Each resource of a change has the result that the broker gave it.")
def test_each_resource_has_its_result() -> None:
    event = event_of(asked_for(19, 7, TWO, item_errors=refused("topic", b"orders", 36)))
    assert (event.operation, event.resource_count, event.validate_only) == ("Create", 3, True)
    assert event.resources == (
        Resource("topic", "orders", error_code=36),
        Resource("config", "retention.ms", None, "topic", "orders", 36),
        Resource("topic", "clicks"),
    )
    # A resource without a name has the result at its place.
    asked = {"Creations": [{"ResourceType": 2, "ResourceName": name, "Principal": "User:b"} for name in ("a", "b")]}
    event = event_of(asked_for(30, 3, asked, item_errors=refused("acl", None, 42, index=1)))
    assert [one.error_code for one in event.resources] == [0, 0, 42, 42]
    # A topic that goes by its id has its name and result.
    asked = {"Topics": [{"TopicId": TOPIC_ID, "Name": None}]}
    event = event_of(asked_for(20, 6, asked, item_errors=refused("topic", None, 29, topic_id=TOPIC_ID)))
    (resource,) = event.resources
    assert (resource.resource_name, resource.error_code) == ("orders", 29)
    assert resource.topic_id is not None
    # Of more errors than are kept the results of the others are not known.
    kept = tuple(ItemErrorFacts(29, "topic", f"t{n}".encode(), None, -1, 0, None, None) for n in range(150, 200))
    event = event_of(asked_for(20, 5, MANY, item_errors=ItemErrors(kept, 200, 0, 0)))
    assert Counter(one.error_code for one in event.resources) == {29: 50, -1: 150}


OFFSETS = [{"Name": "t", "Partitions": [{}]}]
MANY = {"TopicNames": [f"t{number}" for number in range(200)]}


def test_without_errors_of_single_items_each_resource_has_one_result() -> None:
    """An empty response of the sidecar is that to an unsupported request, which the broker has not seen."""
    codes = [DecodeCode.NOT_KEPT, DecodeCode.UNSUPPORTED, DecodeCode.MALFORMED]
    for asked, changes, later, code in (
        (TWO, {"error_code": 41}, {}, 41),
        (TWO, {}, {"outcome_code": 3}, -1),
        (MANY, {"synthesized": True}, {"response_bytes": 8}, 35),
        *((MANY, {}, {"decode_code": decode}, -1) for decode in codes),
    ):
        reported = asked_for(19 if asked is TWO else 20, 7 if asked is TWO else 5, asked, **changes)
        for name, value in later.items():
            setattr(reported, name, value)
        assert {one.error_code for one in event_of(reported).resources} == {code}, (changes, later)


@pytest.mark.promise("changes.md", "Resources beyond those that an event lists are counted in it.")
def test_what_a_request_changes_does_not_hide_behind_other_names() -> None:
    named = [f"t{number}" for number in range(2_000)]
    event = event_of(asked_for(20, 5, {"TopicNames": named}))
    assert [one.resource_name for one in event.resources] == named[:MAX_KEPT_CHANGED]
    assert event.resource_count == 2_000


@each(("key", "version", "asked", "code", "denied"),
    [
        (8, 7, {"GroupId": "g", "Topics": OFFSETS}, 30, ("group", "g")),
        (28, 3, {"TransactionalId": "x", "GroupId": "g", "Topics": OFFSETS}, 30, ("group", "g")),
        (28, 3, {"TransactionalId": "x", "GroupId": "g", "Topics": OFFSETS}, 53, ("transactional_id", "x")),
        (24, 3, {"V3AndBelowTransactionalId": "x", "V3AndBelowTopics": [{"Name": "t", "Partitions": [0]}]}, 53,
         ("transactional_id", "x")),
    ])  # fmt: skip
def test_a_group_or_transaction_that_was_denied_says_so(key, version, asked, code, denied) -> None:
    """The response has the error at each partition."""
    part = ItemErrorFacts(code, "topic", b"t", None, 0, 0, None, None)
    event = event_of(asked_for(key, version, asked, item_errors=ItemErrors((part,), 1, 0, 0)))
    found = {(one.resource_type, one.resource_name): one.error_code for one in event.resources}
    assert found[denied] == code
    assert {kind for (kind, _), result in found.items() if result and kind != "topic"} == {denied[0]}


def test_texts_that_are_kept_are_those_of_the_same_request_alone() -> None:
    """Member, generation, result and whether the whole was answered differ; topics are excluded each time."""
    names = TopicNames(dict)
    encoder = RequestEventEncoder({}, names, AuditFilter(names, topics={"orders"}, principals=set()))
    asked = [
        asked_for(12, 4, {"GroupId": "g", "GenerationId": generation, "MemberId": member})
        for generation in (1, 2)
        for member in ("m", "n")
    ]
    asked += [
        asked_for(12, 4, {"GroupId": "g", "GenerationId": 1, "MemberId": "m"}, error_code=25),
        asked_for(19, 7, TWO),
    ]
    for _ in range(2):
        (chunk,) = encoder.encode_exchanges(asked, 1, 0.0).chunks
        reported = msgspec.json.decode(b"[%b]" % chunk.json, type=list[RequestEvent])
        assert [(one.generation_id, one.member_id) for one in reported] == [
            (1, "m"), (1, "n"), (2, "m"), (2, "n"), (1, "m"), (-1, None),
        ]  # fmt: skip
        assert [one.resources[0].error_code for one in reported] == [0, 0, 0, 0, 25, 0]
        assert [one.resource_name for one in reported[-1].resources] == ["clicks"]
