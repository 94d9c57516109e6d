"""What is wrong with an audit topic that somebody else has made."""

from __future__ import annotations

import pytest

from observers.kafka_admin import DAY_MS, find_topic_problems

RECORD = 900_000
GOOD = {"cleanup.policy": "delete", "retention.ms": str(DAY_MS), "max.message.bytes": str(RECORD)}


@pytest.mark.parametrize(
    ("config", "replicas", "brokers", "problems"),
    [
        (GOOD, 3, 3, set()),
        (GOOD, 1, 2, set()),
        (GOOD | {"retention.ms": "-1"}, 3, 3, set()),
        ({}, 3, 3, set()),  # it may not be read
        (GOOD | {"cleanup.policy": "compact"}, 3, 3, {"compacted"}),
        (GOOD | {"cleanup.policy": "delete,compact"}, 3, 3, {"compacted"}),
        (GOOD | {"retention.ms": str(DAY_MS - 1)}, 3, 3, {"short_retention"}),
        (GOOD | {"max.message.bytes": str(RECORD - 1)}, 3, 3, {"small_messages"}),
        (GOOD | {"message.timestamp.type": "CreateTime"}, 3, 3, {"create_time"}),
        (GOOD | {"message.timestamp.type": "LogAppendTime"}, 3, 3, set()),
        ({}, 1, 3, {"one_replica"}),
        ({"cleanup.policy": "compact", "retention.ms": "0"}, 1, 5, {"compacted", "short_retention", "one_replica"}),
    ],
)
def test_what_makes_a_topic_a_bad_place(
    config: dict[str, str], replicas: int, brokers: int, problems: set[str]
) -> None:
    assert set(find_topic_problems(config, replicas, brokers, RECORD)) == problems
