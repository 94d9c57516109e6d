"""Which settings of the audit's producer a user may choose, and librdkafka's log lines."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from structlog.testing import capture_logs

from observers.audit import AuditObserver
from observers.audit_producer import RESERVED_SETTINGS, producer_settings
from observers.errors import ObserverError
from observers.kafka_admin import RDKAFKA_LOG_INTERVAL, RdkafkaLog
from observers.topic_names import TopicNames

INTERNAL = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "PLAINTEXT"}


def test_a_user_changes_defaults_but_not_guarantees() -> None:
    settings = producer_settings(INTERNAL, {"compression.type": "lz4", "linger.ms": 5}, "brokerside-audit-1")
    assert settings["bootstrap.servers"] == "127.0.0.1:1"
    assert (settings["compression.type"], settings["linger.ms"]) == ("lz4", 5)
    assert settings["enable.idempotence"] is True
    assert settings["client.id"] == "brokerside-audit-1"


@pytest.mark.parametrize("key", sorted(RESERVED_SETTINGS))
def test_own_settings_are_refused_by_name(key: str) -> None:
    with pytest.raises(ObserverError, match=f"audit.producer: {key} cannot be set"):
        producer_settings(INTERNAL, {key: "x"}, "me")


@pytest.mark.parametrize("value", [False, "false", "FALSE"])
def test_idempotence_cannot_be_given_up(value: Any) -> None:
    with pytest.raises(ObserverError, match=r"enable\.idempotence must stay true"):
        producer_settings(INTERNAL, {"enable.idempotence": value}, "me")


def configs(**changes: Any) -> dict[str, Any]:
    values = {
        "broker.id": 1,
        "boot.id": "boot",
        "sidecar.version": "0",
        "internal": INTERNAL,
        "topic.names": TopicNames(dict),
        "audit": {"topic": "audit"},
        "api.names": {},
    }
    return {**values, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"internal": {}}, "internal.bootstrap.servers is not set"),
        ({"audit": {"producer": {"no.such": 1}}}, 'No such configuration property: "no.such"'),
        ({"audit": {"producer": {"acks": 1}}}, "acks"),
        ({"audit": {"producer": {"queue.buffering.max.kbytes": "much"}}}, r"queue\.buffering\.max\.kbytes"),
        ({"audit": {"producer": {"message.max.bytes": "much"}}}, r"message\.max\.bytes"),
        (
            {"audit": {"producer": {"message.max.bytes": 2**21}, "spool.path": "/nowhere", "spool.max.bytes": 2**20}},
            r"message.max.bytes is 2097152 \(allowed: up to audit.spool.max.bytes, 1048576\)",
        ),
    ],
)
def test_settings_the_audit_cannot_work_with_refuse_the_start(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ObserverError, match=says):
        AuditObserver().configure(configs(**changes))


def test_librdkafkas_lines_are_logged_one_at_a_time_and_counted() -> None:
    now = [0.0]
    lines = RdkafkaLog(lambda: now[0])
    with capture_logs() as logged:
        for _ in range(500):
            lines.log(logging.ERROR, "%s [%s] %s", "FAIL", "me", "connection refused")
        now[0] = RDKAFKA_LOG_INTERVAL
        lines.log(logging.INFO, "%s [%s] %s", "OK", "me", "fine")
    assert [(e["log_level"], e["line"], e["suppressed"]) for e in logged] == [
        ("warning", "FAIL [me] connection refused", 0),
        ("info", "OK [me] fine", 499),
    ]
