"""Errors of single items of a response: of a topic, a partition, a resource, a group.

``program`` turns the schema of one response into instructions for the walker (``proxy.compiled.walk``). Produce, Fetch
and ShareFetch have walkers of their own. Of DeleteAcls it also has the ACLs that were found.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from proxy.core.instructions import MAX_DEPTH, RESOURCE_TYPES, Instruction, Op, add_acl_field, add_skip
from proxy.core.observation_interest import ERROR_AFTER_THROTTLE
from proxy.core.schema import SIZES, Field, Layout, UnknownMessage, layout, response_prefix

MAX_KEPT_FAILURES = 100
"""Items of one response with a failure that are kept one by one. The others are counted."""

MAX_KEPT_STEPS = 20
"""The same of items with a retriable error or a step of a protocol."""

WALKED = frozenset((0, 1, 78))
"""Produce, Fetch, ShareFetch."""

RETRIABLE = frozenset((5, 6, 14, 15, 16, 41, 51, 74, 75, 78, 88))
"""Error codes of a broker that is not, or not yet, the one to ask: a leader or coordinator moves or loads, or a
transaction is still completing. Clients ask again by themselves.

LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR,
NOT_CONTROLLER, CONCURRENT_TRANSACTIONS, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_NOT_AVAILABLE,
UNSTABLE_OFFSET_COMMIT.
"""

PROTOCOL = frozenset((22, 25, 27, 46, 70, 71, 79, 106, 110, 113, 117, 122, 123))
"""Error codes that are a step of a protocol: a group rebalances, a session is renewed, a version or an id is agreed.

ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, DUPLICATE_SEQUENCE_NUMBER, FETCH_SESSION_ID_NOT_FOUND,
INVALID_FETCH_SESSION_EPOCH, MEMBER_ID_REQUIRED, FETCH_SESSION_TOPIC_ID_ERROR, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH,
UNKNOWN_SUBSCRIPTION_ID, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
"""


AUTHORIZATION_ERRORS: Mapping[int, str] = MappingProxyType(
    {29: "topic", 30: "group", 31: "cluster", 53: "transactional_id", 65: "delegation_token"}
)
"""Error codes of a client without the right that it needs, and the type of the resource that it has no right to.

TOPIC_, GROUP_, CLUSTER_, TRANSACTIONAL_ID_ and DELEGATION_TOKEN_AUTHORIZATION_FAILED.
"""

NONE, STEP, RETRY, FAILURE = range(4)
"""How bad an error code is: none at all, a step of a protocol, retriable, or a failure."""

_API_VERSIONS, _UNSUPPORTED_VERSION = 18, 35


def severity(api_key: int, error_code: int) -> int:
    """Return how bad an error code of a response is. An ApiVersions that is too new for the broker is a step: the
    client asks again with the version in the response (KIP-511)."""
    if not error_code:
        return NONE
    if error_code in PROTOCOL or (api_key, error_code) == (_API_VERSIONS, _UNSUPPORTED_VERSION):
        return STEP
    return RETRY if error_code in RETRIABLE else FAILURE


NAMED_BY: Mapping[str, str] = MappingProxyType(
    {
        "GroupId": "group",
        "TransactionalId": "transactional_id",
        "MemberId": "member",
        "Key": "coordinator",
        "LogDir": "log_dir",
        "User": "user",
        "Feature": "feature",
        "ResourceName": "",
        "TopicName": "topic",
        "Topic": "topic",
        "Name": "topic",
    }
)
"""Fields that name the resource that a struct is about, and its type; of ResourceName, ResourceType says it."""

NAMELESS: Mapping[int, str] = MappingProxyType({30: "acl", 31: "acl", 49: "client_quota"})
"""By api key, type of the items that have no name. They are identified by their place."""

DELETE_ACLS = 31
"""Api key whose response lists what was deleted."""

PARTITIONS = ("PartitionIndex", "Partition", "PartitionId", "Index")


def program(api_key: int, api_version: int) -> list[Instruction] | None:
    """Return the instructions for a response; None where it has no error code but at its beginning, or is unknown."""
    if api_key in WALKED:
        return None
    try:
        made = layout(api_key, api_version, response=True)
    except UnknownMessage:
        return None
    first = response_prefix(api_key, api_version)
    known = 2 if first & ERROR_AFTER_THROTTLE else 1 if first else 0  # fields that need no walker
    if not any(_has_error(field) for field in (*made.ordered[known:], *made.tagged.values())):
        return None
    out: list[Instruction] = []
    _add_struct(out, made, api_key, "", 1)
    out.append((Op.END, int(made.flexible), 0))
    return out


def _is_error(field: Field) -> bool:
    return field.type == "int16" and not field.array and field.name.endswith("ErrorCode")


def _has_error(field: Field) -> bool:
    if field.layout is None:
        return _is_error(field)
    return any(_has_error(one) for one in (*field.layout.ordered, *field.layout.tagged.values()))


def _add_struct(out: list[Instruction], made: Layout, api_key: int, array: str, depth: int) -> None:
    matters = any(_has_error(field) for field in (*made.ordered, *made.tagged.values()))
    name = _name_field(made) if matters else None
    for field in made.ordered:
        if field.array:
            _add_array(out, field, api_key, depth)
        elif field.layout is not None:
            at = len(out)
            if field.nullable:
                out.append((Op.OPTIONAL, 0, 0))
            _add_struct(out, field.layout, api_key, "", depth)
            if field.nullable:
                out[at] = (Op.OPTIONAL, 0, len(out))
        elif _is_error(field):
            out.append((Op.ERROR, 0, 0))
        elif field is name:
            out.append((Op.NAME, 0, 0))
        elif matters and field is made.topic_id:
            out.append((Op.TOPIC_ID, 0, 0))
        elif matters and field.type == "int32" and field.name in PARTITIONS:
            out.append((Op.PARTITION, 0, 0))
        elif matters and field.type == "int8" and field.name == "ResourceType":
            out.append((Op.RESOURCE_TYPE, int(api_key in NAMELESS), 0))
        elif (api_key, array) == (DELETE_ACLS, "MatchingAcls") and add_acl_field(out, field.name, response=True):
            pass
        elif field.type in SIZES:
            add_skip(out, SIZES[field.type])
        else:
            out.append((Op.TEXT if field.type == "string" else Op.BYTES, 0, 0))
    if made.flexible:
        tag = next((tag for tag, field in made.tagged.items() if _is_error(field)), -1)
        out.append((Op.TAGS, tag, 0))


def _add_array(out: list[Instruction], field: Field, api_key: int, depth: int) -> None:
    if field.type in SIZES:
        out.append((Op.NUMBERS, SIZES[field.type], 0))
        return
    kind = _resource_type(field.layout, api_key) if field.layout is not None and _has_error(field) else ""
    if depth == MAX_DEPTH:
        raise ValueError(f"api key {api_key}: arrays nested more than {MAX_DEPTH} deep")
    at = len(out)
    out.append((Op.ARRAY, 0, 0))
    if field.layout is not None:
        _add_struct(out, field.layout, api_key, field.name, depth + 1)
    else:
        out.append((Op.TEXT if field.type == "string" else Op.BYTES, 0, 0))
    out.append((Op.NEXT, 0, 0))
    out[at] = (Op.ARRAY, RESOURCE_TYPES.index(kind), len(out))


def _name_field(made: Layout) -> Field | None:
    if made.topic is not None:
        return made.topic
    named = {field.name: field for field in made.ordered if field.type == "string" and not field.array}
    return next((named[name] for name in NAMED_BY if name in named), None)


def _resource_type(made: Layout, api_key: int) -> str:
    """Return the type of what a struct is about; "" where an enclosing struct or the bytes say it."""
    name = _name_field(made)
    if made.topic is not None or made.topic_id is not None:
        return "topic"
    if name is not None:
        return NAMED_BY[name.name]
    if any(field.name in PARTITIONS for field in made.ordered):
        return "partition"
    return NAMELESS.get(api_key, "")
