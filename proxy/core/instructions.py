"""Instructions of the walker that reads resources of requests and errors of responses (``proxy.compiled.walk``).

``request_resources`` and ``response_errors`` turn the schema of a message into a list of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType

Instruction = tuple[int, int, int]
"""What to do (``Op``), an argument, and the instruction to continue with where there are no elements."""

MAX_DEPTH = 8
"""Levels of nested arrays, the message itself included: as many as the walker has room for."""


class Op(IntEnum):
    """What an instruction does."""

    END = 0
    """End of the message. The argument says whether its version is flexible (KIP-482)."""
    SKIP = 1
    """Pass over as many bytes as the argument says."""
    TEXT = 2
    """Pass over a string."""
    BYTES = 3
    """Pass over bytes or records."""
    NAME = 4
    """A string: name of the resource."""
    TOPIC_ID = 5
    """A uuid: id of the topic."""
    PARTITION = 6
    """An int32: number of the partition."""
    RESOURCE_TYPE = 7
    """An int8: type of the resource, as Kafka numbers it; the argument says for which numbering."""
    ERROR = 8
    """An int16: error code of the item."""
    ARRAY = 9
    """An array whose elements follow, up to NEXT. The argument is the resource type of the elements."""
    NEXT = 10
    """End of an element."""
    NUMBERS = 11
    """Pass over an array of elements of as many bytes as the argument says."""
    TAGS = 12
    """Tagged fields. The argument is the tag of an error code, or −1."""
    OPTIONAL = 13
    """A struct that may be null: an int8 that is below 0 where it is."""
    RESOURCE = 14
    """No bytes: the resource that was named. The argument is its type; 0 where RESOURCE_TYPE or ENTITY_TYPE said it."""
    FIELD = 15
    """A string: name of the resource, and the field of ``FIELDS`` that the argument numbers."""
    GENERATION = 16
    """An int32: generation of the group, or epoch of the member."""
    OFFSET = 17
    """An int64: committed offset."""
    COMMIT = 18
    """No bytes: the partition has a committed offset."""
    VALIDATE_ONLY = 19
    """A bool: whether the broker is to change nothing."""
    NODE = 20
    """An int32: id of a node, which is a resource. The argument is its type."""
    ACL_TEXT = 21
    """A string: of an ACL. The argument is its place in ``ACL_TEXTS``."""
    ENTITY_TYPE = 22
    """A string: type of an entity of a client quota."""
    ACL_NUMBER = 23
    """An int8: of an ACL. The argument is its place in ``ACL_NUMBERS``."""
    ACL = 24
    """No bytes: an ACL on the resource that was named. The argument says whether a response lists it."""
    OP_TYPE = 25
    """How the resource is changed: an int8, the place in ``OP_TYPES``; with the argument 1 a bool, whether it is
    deleted."""
    MECHANISM = 26
    """An int8: SCRAM mechanism, the place in ``MECHANISMS``. The argument is the place of the change in
    ``OP_TYPES``."""


FIELDS = ("group_id", "group_instance_id", "member_id", "transactional_id")
"""Texts of a whole request."""

RESOURCE_TYPES = (
    "", "topic", "group", "transactional_id", "member", "coordinator", "log_dir", "user", "feature", "acl",
    "client_quota", "broker", "broker_logger", "client_metrics", "cluster", "delegation_token", "partition", "config",
    "client-id", "ip", "any",
)  # fmt: skip
"""Types of resources; the index is the number in instructions. Those that Kafka's ``ResourceType`` has are named as
there, in lower case; entities of quotas as in AlterClientQuotas."""

CONFIG_TYPES: Mapping[int, str] = MappingProxyType(
    {2: "topic", 4: "broker", 8: "broker_logger", 16: "client_metrics", 32: "group"}
)
"""Types of ``ConfigResource``."""

ACL_TYPES: Mapping[int, str] = MappingProxyType(
    {1: "any", 2: "topic", 3: "group", 4: "cluster", 5: "transactional_id", 6: "delegation_token", 7: "user"}
)
"""Types of ``ResourceType``."""


ACL_TEXTS: Sequence[tuple[str, ...]] = (("Principal", "PrincipalFilter"), ("Host", "HostFilter"))
"""Texts of an ACL, by their names in the messages."""

ACL_NUMBERS: Sequence[tuple[str, ...]] = (
    ("PatternType", "ResourcePatternType", "PatternTypeFilter"), ("Operation",), ("PermissionType",),
)  # fmt: skip
"""Numbers of an ACL, likewise; the permission type is the last field of each."""

PATTERN_TYPES = ("UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED")
"""Kafka's ``PatternType``."""

LITERAL = PATTERN_TYPES.index("LITERAL")
"""What versions mean that have no pattern type."""

ACL_OPERATIONS = (
    "Unknown", "Any", "All", "Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction",
    "DescribeConfigs", "AlterConfigs", "IdempotentWrite", "CreateTokens", "DescribeTokens", "TwoPhaseCommit",
)  # fmt: skip
"""Kafka's ``AclOperation``."""

PERMISSION_TYPES = ("UNKNOWN", "ANY", "DENY", "ALLOW")
"""Kafka's ``AclPermissionType``."""

OP_TYPES = ("SET", "DELETE", "APPEND", "SUBTRACT")
"""Kafka's ``AlterConfigOp.OpType``."""

MECHANISMS = ("UNKNOWN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""Kafka's ``ScramMechanism``."""


def add_acl_field(out: list[Instruction], name: str, *, response: bool) -> bool:
    """Add a field of an ACL, and with the last one the ACL; return whether it is one."""
    for op, fields in ((Op.ACL_TEXT, ACL_TEXTS), (Op.ACL_NUMBER, ACL_NUMBERS)):
        for place, names in enumerate(fields):
            if name in names:
                out.append((op, place, 0))
                if name == "PermissionType":
                    out.append((Op.ACL, int(response), 0))
                return True
    return False


def add_skip(out: list[Instruction], size: int) -> None:
    """Pass over ``size`` bytes more."""
    if out and out[-1][0] == Op.SKIP:
        out[-1] = (Op.SKIP, out[-1][1] + size, 0)
    else:
        out.append((Op.SKIP, size, 0))
