"""Settings of own observers: from the configuration to ``configure``, and what ``check-config`` says of them."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from observers.audit import AuditObserver
from observers.audit_producer import RESERVED_SETTINGS, producer_settings
from observers.dispatch import Dispatcher
from observers.errors import ObserverError
from observers.kafka_admin import RDKAFKA_LOG_INTERVAL, RdkafkaLog
from proxy.commands.sidecar import check_config
from proxy.config import load, redacted
from proxy.config.difference import fingerprint
from proxy.config.serialization import pack, unpack
from proxy.errors import ConfigError, LocalError
from tests.unit.observers.audit_levels import configs as given_to_observers

MODULE = """
import json, threading

class Reporting:
    def configure(self, configs):
        settings = configs["settings"]
        if settings.get("interval.ms", 1) <= 0:
            raise ValueError(f"interval.ms: {settings['interval.ms']} (allowed: above 0)")
        with open(settings["out"], "a") as out:
            out.write(json.dumps([dict(settings), configs["config"]["broker.id"], bool(configs.get("dry.run"))]))
    def record_exchanges(self, exchanges, dropped): pass
    def close(self, timeout): pass
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "reporting.py").write_text(MODULE)
    (tmp_path / "token").write_text("c4n4ry\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def config_file(home: Path, observers: dict[str, Any], *names: str) -> Path:
    path = home / "brokerside.yaml"
    values = {
        "broker.id": 7,
        "internal.bootstrap.servers": "127.0.0.1:3",
        "listeners": [{"name": "CLIENT", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2"}],
        "observer.class.names": list(names) or ["reporting:Reporting"],
        "observers": observers,
    }
    path.write_text(yaml.safe_dump(values))
    return path


def check(path: Path) -> str:
    """What ``check-config`` says is wrong; nothing where all is well."""
    try:
        check_config(path)
    except (ConfigError, LocalError) as error:
        return str(error)
    return ""


@pytest.mark.promise("observers.md", "An observer gets its settings, with the content of files.")
def test_an_observer_gets_its_settings_and_the_whole_configuration(home: Path) -> None:
    given = {"out": str(home / "out"), "interval.ms": 50, "on": True, "token": {"file": "token"}}
    path = config_file(home, {"reporting:Reporting": given})
    config = load(path)
    assert "c4n4ry" not in str(redacted(config))
    assert "c4n4ry" not in str(config)
    assert unpack(pack(config)).observers == config.observers
    assert check(path) == ""
    assert yaml.safe_load((home / "out").read_text()) == [given | {"token": "c4n4ry"}, 7, True]
    before = fingerprint(config)
    (home / "token").write_text("another")
    assert fingerprint(load(path)) != before, "another secret is another configuration"
    dispatcher = Dispatcher(["tests.unit.observers.fakes:Keeper"], {})
    dispatcher.check()
    (kept,) = dispatcher.observers.values()
    assert (kept.configs["settings"], kept.configs["dry.run"]) == ({}, True)


@pytest.mark.promise("observers.md", "check-config names a setting that an observer refuses, and what is allowed.")
def test_a_refused_setting_is_named_by_check_config(home: Path) -> None:
    said = check(config_file(home, {"reporting:Reporting": {"out": str(home / "out"), "interval.ms": 0}}))
    refused = "'reporting:Reporting' refused its configuration: ValueError: interval.ms: 0 (allowed: above 0)"
    assert refused in said


@pytest.mark.promise("audit-delivery.md", "check-config finds a spool that cannot be written.")
def test_the_audit_checks_its_settings_and_starts_nothing(home: Path) -> None:
    path = config_file(home, {}, "observers.audit:AuditObserver")
    values = yaml.safe_load(path.read_text())
    (home / "file").write_text("")
    for spool, producer, says in (
        ("spool", {"compression.level": "seven"}, "compression.level"),
        ("file", {}, f"audit.spool.path: {home}/file cannot be written: {home}/file is not a folder"),
        ("spool", {}, ""),
    ):
        values["audit"] = {"spool.path": str(home / spool), "producer": producer}
        path.write_text(yaml.safe_dump(values))
        said = check(path)
        assert (bool(said), says in said) == (bool(says), True), said
    assert not (home / "spool").exists()


INTERNAL = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "PLAINTEXT"}


@pytest.mark.promise("audit-delivery.md", "audit.producer changes defaults, but no guarantee.")
def test_a_user_changes_defaults_but_not_guarantees() -> None:
    settings = producer_settings(INTERNAL, {"compression.type": "lz4", "linger.ms": 5}, "brokerside-audit-1")
    assert settings["bootstrap.servers"] == "127.0.0.1:1"
    assert (settings["compression.type"], settings["linger.ms"]) == ("lz4", 5)
    assert (settings["enable.idempotence"], settings["client.id"]) == (True, "brokerside-audit-1")
    for key in RESERVED_SETTINGS:
        with pytest.raises(ObserverError, match=f"audit.producer: {key} cannot be set"):
            producer_settings(INTERNAL, {key: "x"}, "me")
    for value in (False, "false", "FALSE"):
        with pytest.raises(ObserverError, match=r"enable\.idempotence must stay true"):
            producer_settings(INTERNAL, {"enable.idempotence": value}, "me")


def test_settings_the_audit_cannot_work_with_refuse_the_start() -> None:
    large = {"producer": {"message.max.bytes": 2**21}, "spool.path": "/nowhere", "spool.max.bytes": 2**20}
    for changes, says in (
        ({"internal": {}}, "internal.bootstrap.servers is not set"),
        ({"audit": {"producer": {"no.such": 1}}}, 'No such configuration property: "no.such"'),
        ({"audit": {"producer": {"acks": 1}}}, "acks"),
        ({"audit": {"producer": {"queue.buffering.max.kbytes": "much"}}}, r"queue\.buffering\.max\.kbytes"),
        ({"audit": {"producer": {"message.max.bytes": "much"}}}, r"message\.max\.bytes"),
        ({"audit": large}, r"message.max.bytes is 2097152 \(allowed: up to audit.spool.max.bytes, 1048576\)"),
    ):
        with pytest.raises(ObserverError, match=says):
            AuditObserver().configure({**given_to_observers("boot", topic="audit"), **changes})


@pytest.mark.promise("log-events.md", "Lines of librdkafka are limited, and those left out counted.")
def test_librdkafkas_lines_are_logged_one_at_a_time_and_counted() -> None:
    now = [0.0]
    lines = RdkafkaLog(lambda: now[0])
    with capture_logs() as logged:
        for _ in range(500):
            lines.log(logging.ERROR, "%s [%s] %s", "FAIL", "me", "connection refused")
        now[0] = RDKAFKA_LOG_INTERVAL
        lines.log(logging.INFO, "%s [%s] %s", "OK", "me", "fine")
        now[0] += RDKAFKA_LOG_INTERVAL
        first = "Failed to acquire transactional PID: Broker: Coordinator load in progress: retrying"
        lines.log(logging.WARNING, "%s [%s] %s", "GETPID", "me", first)
    got = [(e["log_level"], e["line"], e["suppressed"]) for e in logged]
    assert got == [
        ("warning", "FAIL [me] connection refused", 0),
        ("info", "OK [me] fine", 499),
        ("info", f"GETPID [me] {first}", 0),
    ]
