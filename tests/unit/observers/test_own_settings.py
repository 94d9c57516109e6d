"""Settings of own observers: from the configuration to ``configure``, and what ``check-config`` says of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from observers.dispatch import Dispatcher
from proxy.config import load, redacted
from proxy.config.difference import fingerprint
from proxy.config.serialization import pack, unpack
from proxy.errors import ConfigError

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


def check(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", "check-config", str(path)]
    paths = os.pathsep.join((str(path.parent), os.getcwd()))
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=os.environ | {"PYTHONPATH": paths}
    )


def test_an_observer_gets_its_settings_and_the_whole_configuration(home: Path) -> None:
    given = {"out": str(home / "out"), "interval.ms": 50, "on": True, "token": {"file": "token"}}
    config = load(config_file(home, {"reporting:Reporting": given}))
    assert "c4n4ry" not in str(redacted(config))
    assert "c4n4ry" not in str(config)
    assert unpack(pack(config)).observers == config.observers
    done = check(home / "brokerside.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    reported = given | {"token": "c4n4ry"}
    assert yaml.safe_load((home / "out").read_text()) == [reported, 7, True]


def test_a_refused_setting_is_named_by_check_config(home: Path) -> None:
    given = {"reporting:Reporting": {"out": str(home / "out"), "interval.ms": 0}}
    done = check(config_file(home, given))
    assert done.returncode == 1
    assert (
        "'reporting:Reporting' refused its configuration: ValueError: interval.ms: 0 (allowed: above 0)" in done.stderr
    )


@pytest.mark.parametrize(
    ("observers", "said"),
    [
        ({"other:Class": {"a": 1}}, "observers.other:Class: is no class of observer.class.names"),
        ({"reporting:Reporting": {"a": [1]}}, "observers.reporting:Reporting.a"),
        ({"reporting:Reporting": {"a": {"file": "missing"}}}, "file 'missing' cannot be read"),
        ({"reporting:Reporting": 5}, "observers.reporting:Reporting"),
    ],
)
def test_a_wrong_setting_has_an_error_that_says_where(home: Path, observers: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="observers") as raised:
        load(config_file(home, observers))
    assert said in str(raised.value)


def test_another_secret_is_another_configuration(home: Path) -> None:
    path = config_file(home, {"reporting:Reporting": {"token": {"file": "token"}}})
    before = fingerprint(load(path))
    (home / "token").write_text("another")
    assert fingerprint(load(path)) != before


def test_the_audit_checks_its_settings_and_starts_nothing(home: Path) -> None:
    path = config_file(home, {}, "observers.audit:AuditObserver")
    values = yaml.safe_load(path.read_text())
    values["audit"] = {"spool.path": str(home / "spool"), "producer": {"compression.level": "seven"}}
    path.write_text(yaml.safe_dump(values))
    done = check(path)
    assert done.returncode == 1
    assert "compression.level" in done.stderr
    values["audit"]["producer"] = {}
    path.write_text(yaml.safe_dump(values))
    assert check(path).returncode == 0
    assert not (home / "spool").exists()


def test_observers_without_settings_get_an_empty_mapping(home: Path) -> None:
    dispatcher = Dispatcher(["tests.unit.observers.test_own_settings:Kept"], {})
    dispatcher.check()
    (kept,) = dispatcher.observers.values()
    assert kept.configs["settings"] == {}  # type: ignore[union-attr]
    assert kept.configs["dry.run"] is True  # type: ignore[union-attr]


class Kept:
    """Keeps what it is configured with."""

    def configure(self, configs: Any) -> None:
        self.configs = configs

    def record_exchanges(self, exchanges: Any, dropped: int) -> None:
        pass

    def close(self, timeout: float) -> None:
        pass
