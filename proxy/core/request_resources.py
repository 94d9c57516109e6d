"""What a request is about: topics, groups, settings, ACLs, users, … that it reads or changes.

``program`` turns the schema of one request into instructions for the walker (``proxy.compiled.walk``). Produce, Fetch
and ShareFetch have walkers of their own. Values, such as those of settings or passwords, are passed over. ACLs are
read whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from proxy.core.instructions import (
    FIELDS,
    MAX_DEPTH,
    OP_TYPES,
    RESOURCE_TYPES,
    Instruction,
    Op,
    add_acl_field,
    add_skip,
)
from proxy.core.schema import SIZES, Field, Layout, UnknownMessage, layout

MAX_KEPT_RESOURCES = 100
"""Resources of one request that are kept one by one. The others are counted."""

MAX_KEPT_CHANGED = 1_000
"""The same of a request that changes its resources: what it changes must not hide behind other names."""

MAX_KEPT_COMMITS = 1_000
"""The same of committed offsets."""

OPERATIONS: Mapping[int, str] = MappingProxyType(
    {
        0: "Write", 1: "Read", 2: "Describe", 3: "Describe", 8: "Read", 9: "Describe", 10: "Describe", 11: "Read",
        12: "Read", 13: "Read", 14: "Read", 15: "Describe", 16: "Describe", 19: "Create", 20: "Delete", 21: "Delete",
        22: "Write", 23: "Describe", 24: "Write", 25: "Write", 26: "Write", 28: "Write", 29: "Describe", 30: "Alter",
        31: "Alter", 32: "DescribeConfigs", 33: "AlterConfigs", 34: "Alter", 35: "Describe", 37: "Alter",
        38: "CreateTokens", 39: "Alter", 40: "Delete", 41: "DescribeTokens", 42: "Delete", 43: "Alter",
        44: "AlterConfigs", 45: "Alter", 46: "Describe", 47: "Delete", 48: "DescribeConfigs", 49: "AlterConfigs",
        50: "Describe", 51: "Alter", 55: "Describe", 57: "Alter", 60: "Describe", 61: "Read", 64: "Alter",
        65: "Describe", 66: "Describe", 68: "Read", 69: "Describe", 74: "DescribeConfigs", 75: "Describe", 76: "Read",
        77: "Describe", 78: "Read", 79: "Read", 80: "Alter", 81: "Alter", 88: "Read", 89: "Describe", 90: "Describe",
        91: "Alter", 92: "Delete", 93: "Read", 94: "Alter",
    }
)  # fmt: skip
"""What requests do to their resources, by api key: Kafka's ``AclOperation``. Requests between brokers and controllers
and those of a login are left out. Where Kafka asks for another right than the word for what happens (ShareFetch may
alter offsets with Read), this is the word for what happens."""

CHANGES = frozenset(("Create", "Delete", "Alter", "AlterConfigs", "CreateTokens"))
"""Operations that change something but records and offsets of a group."""

CHANGING = frozenset(api_key for api_key, operation in OPERATIONS.items() if operation in CHANGES)
"""Api keys of requests with these operations."""

WALKED = frozenset((0, 1, 78))
"""Produce, Fetch, ShareFetch."""

UNNAMED: Mapping[int, str] = MappingProxyType(
    {16: "group", 39: "delegation_token", 40: "delegation_token", 60: "cluster", 66: "transactional_id", 74: "cluster"}
)
"""Api keys whose requests are about resources that they do not name, and the type of these."""

COMMITS = frozenset((8, 28))
"""OffsetCommit, TxnOffsetCommit: their topics are those of committed offsets."""

TOPICS_LEFT_OUT = COMMITS | {9, 88, 93}
"""Those two, OffsetFetch, StreamsGroupHeartbeat, StreamsGroupTopologyDescriptionUpdate: they are about the group."""

FIELD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "GroupId": "group_id",
        "GroupInstanceId": "group_instance_id",
        "InstanceId": "group_instance_id",
        "MemberId": "member_id",
        "TransactionalId": "transactional_id",
        "V3AndBelowTransactionalId": "transactional_id",
    }
)

FIELD_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "GroupId": "group",
        "TransactionalId": "transactional_id",
        "V3AndBelowTransactionalId": "transactional_id",
    }
)
"""Fields of those above that name a resource."""

NAMES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("", "Key"): "coordinator",
        ("", "OwnerPrincipalName"): "user",
        ("", "ResourceNameFilter"): "",
        ("Components", "Match"): "",
        ("Configs", "Name"): "config",
        ("Creations", "ResourceName"): "",
        ("Deletions", "Name"): "user",
        ("Dirs", "Path"): "log_dir",
        ("Entity", "EntityName"): "",
        ("FeatureUpdates", "Feature"): "feature",
        ("Filters", "ResourceNameFilter"): "",
        ("Ops", "Key"): "config",
        ("Owners", "PrincipalName"): "user",
        ("Resources", "ResourceName"): "",
        ("Upsertions", "Name"): "user",
        ("Users", "Name"): "user",
    }
)
"""Other fields that name a resource, by the array around them, and its type; "" where a field before it says that. The
schema itself says which fields name topics."""

ARRAYS: Mapping[str, str] = MappingProxyType(
    {
        "Groups": "group",
        "GroupIds": "group",
        "GroupsNames": "group",
        "TransactionalIds": "transactional_id",
        "TopicNames": "topic",
        "CoordinatorKeys": "coordinator",
    }
)
"""Arrays of names."""

NODES: Mapping[int, str] = MappingProxyType({64: "BrokerId", 80: "VoterId", 81: "VoterId", 94: "ControllerId"})
"""By api key, the field with the id of the node that a request is about."""

CONFIG_APIS = frozenset((32, 33, 44))
"""Api keys with types of ``ConfigResource``; the others have those of ACLs."""

ACL_APIS = frozenset((29, 30, 31))
"""Api keys of requests that have ACLs, or filters of them."""

CHANGES_OF: Mapping[tuple[int, str], tuple[str, Op, int, str]] = MappingProxyType(
    {
        (44, "Configs"): ("ConfigOperation", Op.OP_TYPE, 0, "config"),
        (49, "Ops"): ("Remove", Op.OP_TYPE, 1, "config"),
        (51, "Deletions"): ("Mechanism", Op.MECHANISM, OP_TYPES.index("DELETE"), "user"),
        (51, "Upsertions"): ("Mechanism", Op.MECHANISM, OP_TYPES.index("SET"), "user"),
    }
)
"""By api key and array, the field after the name that says how the resource is changed, its instruction with the
argument, and the type of the resource."""

PASSED: Mapping[int, str] = MappingProxyType({14: "Assignments", 75: "Cursor"})
"""By api key, a field that names what the request is not about: other members than the asking one, where to resume."""


def program(api_key: int, api_version: int) -> list[Instruction] | None:
    """Return the instructions for a request; None where it is about no resource, or is unknown."""
    if api_key in WALKED or api_key not in OPERATIONS:
        return None
    try:
        made = layout(api_key, api_version, response=False)
    except UnknownMessage:
        return None
    out: list[Instruction] = []
    if api_key in UNNAMED:
        out.append((Op.RESOURCE, RESOURCE_TYPES.index(UNNAMED[api_key]), 0))
    _add_struct(out, made, api_key, "", 1)
    out.append((Op.END, int(made.flexible), 0))
    return out


def _add_struct(
    out: list[Instruction], made: Layout, api_key: int, array: str, depth: int, *, passed: bool = False
) -> None:
    """``passed``: nothing in it matters."""
    topic = [field for field in made.ordered if field is made.topic_id or (field is made.topic and not field.array)]
    for field in made.ordered:
        unread = passed or PASSED.get(api_key) == field.name
        if field.array:
            _add_array(out, field, api_key, depth, unread)
        elif field.layout is not None:
            at = len(out)
            if field.nullable:
                out.append((Op.OPTIONAL, 0, 0))
            _add_struct(out, field.layout, api_key, "", depth, passed=unread)
            if field.nullable:
                out[at] = (Op.OPTIONAL, 0, len(out))
        elif unread or not _add_field(out, field, api_key, array, is_topic=field in topic):
            _pass_field(out, field)
        if topic and field is topic[-1] and not unread and api_key not in TOPICS_LEFT_OUT:
            out.append((Op.RESOURCE, RESOURCE_TYPES.index("topic"), 0))
    if made.flexible:
        out.append((Op.TAGS, -1, 0))


def _pass_field(out: list[Instruction], field: Field) -> None:
    if field.type in SIZES:
        add_skip(out, SIZES[field.type])
    else:
        out.append((Op.TEXT if field.type == "string" else Op.BYTES, 0, 0))


def _add_field(out: list[Instruction], field: Field, api_key: int, array: str, *, is_topic: bool) -> bool:
    """Add a text or a number that matters; return whether it does."""
    if api_key in ACL_APIS and add_acl_field(out, field.name, response=False):
        return True
    if field.type == "string":
        return _add_text(out, field, api_key, array, is_topic=is_topic)
    return _add_number(out, field, api_key, array)


def _add_text(out: list[Instruction], field: Field, api_key: int, array: str, *, is_topic: bool) -> bool:
    kind = NAMES.get((array, field.name))
    if field.name in FIELD_NAMES:
        out.append((Op.FIELD, FIELDS.index(FIELD_NAMES[field.name]), 0))
        kind = FIELD_TYPES.get(field.name) or ("member" if (array, field.name) == ("Members", "MemberId") else None)
    elif field.name == "EntityType":
        out.append((Op.ENTITY_TYPE, 0, 0))
    elif kind is not None or is_topic:
        out.append((Op.NAME, 0, 0))
    else:
        return False
    if kind is not None and (api_key, array) not in CHANGES_OF:
        out.append((Op.RESOURCE, RESOURCE_TYPES.index(kind), 0))
    return True


def _add_number(out: list[Instruction], field: Field, api_key: int, array: str) -> bool:
    change = CHANGES_OF.get((api_key, array))
    if change is not None and change[0] == field.name:
        _, op, argument, kind = change
        out += [(op, argument, 0), (Op.RESOURCE, RESOURCE_TYPES.index(kind), 0)]
        return True
    match field.type, field.name:
        case "uuid", "TopicId":
            out.append((Op.TOPIC_ID, 0, 0))
        case "int8", "ResourceType" | "ResourceTypeFilter":
            out.append((Op.RESOURCE_TYPE, int(api_key not in CONFIG_APIS), 0))
        case "int32", "GenerationId" | "GenerationIdOrMemberEpoch" | "MemberEpoch":
            out.append((Op.GENERATION, 0, 0))
        case "bool", "ValidateOnly" | "validateOnly":
            out.append((Op.VALIDATE_ONLY, 0, 0))
        case "int32", "PartitionIndex" if api_key in COMMITS:
            out.append((Op.PARTITION, 0, 0))
        case "int64", "CommittedOffset":
            out += [(Op.OFFSET, 0, 0), (Op.COMMIT, 0, 0)]
        case "int32", name if NODES.get(api_key) == name:
            out.append((Op.NODE, RESOURCE_TYPES.index("broker"), 0))
        case _:
            return False
    return True


def _add_array(out: list[Instruction], field: Field, api_key: int, depth: int, passed: bool) -> None:
    if field.type in SIZES:
        out.append((Op.NUMBERS, SIZES[field.type], 0))
        return
    if depth == MAX_DEPTH:
        raise ValueError(f"api key {api_key}: arrays nested more than {MAX_DEPTH} deep")
    at = len(out)
    out.append((Op.ARRAY, 0, 0))
    if field.layout is not None:
        _add_struct(out, field.layout, api_key, field.name, depth + 1, passed=passed)
    elif field.type == "string" and field.name in ARRAYS:
        out += [(Op.NAME, 0, 0), (Op.RESOURCE, RESOURCE_TYPES.index(ARRAYS[field.name]), 0)]
    else:
        _pass_field(out, field)
    out.append((Op.NEXT, 0, 0))
    out[at] = (Op.ARRAY, 0, len(out))
