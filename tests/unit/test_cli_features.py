"""``brokerside features``: what is a wrong usage, and what nobody can do. Nothing is sent in either case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.cli import main
from tests.integration.conftest import free_port

Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def features(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``brokerside features`` with these arguments; gives its exit code, output and errors."""

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["brokerside", "features", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


AUDIT = "brokerside.audit.event.schema"
ALLOWED = (
    f"allowed are features of the fleet, brokerside.NAME; this release has {AUDIT}, brokerside.coordinator.protocol, "
    "brokerside.broker.metadata, brokerside.quota.ip"
)


@pytest.mark.promise(
    "features.md",
    "A wrong usage of `brokerside features` exits with 2 and without a request, and names what is allowed.",
)
def test_a_wrong_usage_is_named_with_what_is_allowed(features: Run) -> None:
    for arguments, said in [
        (["upgrade"], "one of the arguments HOST:PORT --bootstrap-server is required"),
        (["upgrade", "h:1"], "the following arguments are required: NAME=LEVEL"),
        (["upgrade", "--bootstrap-server", "h:1"], "the following arguments are required: NAME=LEVEL"),
        (["upgrade", "nowhere", f"{AUDIT}=2"], "'nowhere' is not host:port"),
        (["upgrade", "h:1", "=2"], "'=2': allowed is NAME=LEVEL"),
        (["upgrade", "h:1", AUDIT], f"'{AUDIT}': allowed is NAME=LEVEL"),
        (["upgrade", "h:1", f"{AUDIT}="], f"'{AUDIT}': '': allowed are levels from 1 to 32767"),
        (["upgrade", "h:1", f"{AUDIT}=two"], f"'{AUDIT}': 'two': allowed are levels from 1 to 32767"),
        (["upgrade", "h:1", f"{AUDIT}=0"], f"'{AUDIT}': '0': allowed are levels from 1 to 32767"),
        (["upgrade", "h:1", f"{AUDIT}=32768"], f"'{AUDIT}': '32768': allowed are levels from 1 to 32767"),
        (["upgrade", "h:1", f"{AUDIT}={'9' * 5000}"], "allowed are levels from 1 to 32767"),
        (["downgrade", "h:1", "audit.event.schema=1"], f"'audit.event.schema': {ALLOWED}"),
        (["disable", "h:1", "metadata.version"], f"'metadata.version': {ALLOWED}"),
        (["upgrade", "h:1", f"{AUDIT}=2", f"{AUDIT}=1"], f"{AUDIT}: is named twice (allowed: once)"),
        (["disable", "h:1", AUDIT, AUDIT], f"{AUDIT}: is named twice (allowed: once)"),
        (["disable", "h:1", "brokerside."], f"'brokerside.': {ALLOWED}"),
        (["disable", "h:1", AUDIT, "--unsaf"], "unrecognized arguments: --unsaf; did you mean --unsafe?"),
        (
            ["describe", "h:1", "--bootstrap-server", "h:2"],
            "'h:1': allowed is one address, HOST:PORT or --bootstrap-server",
        ),
        (["describe"], "one of the arguments HOST:PORT --bootstrap-server is required"),
        (["describe", "h:1", "-o", "yaml"], "invalid choice: 'yaml' (choose from 'table', 'json')"),
        (["upgrade-al", "h:1"], "there is no command 'upgrade-al'; did you mean upgrade-all?"),
        (
            ["forget", "reader/tables 1", "--bootstrap-servers", "h:1"],
            "'reader/tables 1': allowed are sidecar/ID, and reader/NAME of up to 128 letters, digits",
        ),
        (["forget", "sidecar/01", "--bootstrap-servers", "h:1"], "'sidecar/01': allowed are sidecar/ID"),
        (["forget", "sidecar/1", "--bootstrap-servers", "h:1,nowhere"], "'nowhere' is not host:port"),
        (["forget", "sidecar/1"], "the following arguments are required: --bootstrap-server/--bootstrap-servers"),
        (["check"], "the following arguments are required: -c/--config"),
    ]:
        code, output, errors = features(*arguments)
        assert (code, output) == (2, ""), (arguments, said)
        assert said in errors, (arguments, said)


def test_the_address_and_the_features_may_stand_anywhere_among_the_options(features: Run) -> None:
    for arguments in [
        ["upgrade", "HERE", f"{AUDIT}=2", "--dry-run"],
        ["upgrade", "HERE", "--dry-run", f"{AUDIT}=2", "brokerside.quota.ip=1"],
        ["upgrade", "--bootstrap-server", "HERE", f"{AUDIT}=2", "brokerside.quota.ip=1"],
        ["downgrade", "--unsafe", "HERE", f"{AUDIT}=1"],
        ["disable", AUDIT, "--bootstrap-server", "HERE", "brokerside.quota.ip"],
        ["describe", "--bootstrap-server", "HERE"],
        ["upgrade-all", "HERE"],
        ["downgrade-all", "--dry-run", "HERE"],
    ]:
        here = f"127.0.0.1:{free_port()}"
        done = features(*(here if one == "HERE" else one for one in arguments))
        assert done == (1, "", f"brokerside: {here}: Connection refused\n"), arguments


def test_a_file_of_settings_that_is_not_there_is_named(features: Run) -> None:
    done = features("upgrade-all", "127.0.0.1:1", "--command-config", "/nowhere/client.properties")
    assert done == (1, "", "brokerside: /nowhere/client.properties cannot be read: No such file or directory\n")


def test_keys_that_cannot_be_read_are_named(features: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("k1:short\n")
    keys = "--registry-hmac-keys", str(file)
    code, _, errors = features("forget", "sidecar/1", "--bootstrap-servers", "127.0.0.1:1", *keys)
    assert code == 1
    assert errors.startswith(f"brokerside: --registry-hmac-keys: file '{file}' line 1: the key of 'k1' is")


def test_a_sidecar_that_keeps_no_features_fits(features: Run, tmp_path: Path) -> None:
    for lines, why in [
        ("", "internal.bootstrap.servers is missing"),
        ("internal.bootstrap.servers: 127.0.0.1:1\nfeatures: {enabled: false}\n", "features.enabled is false"),
    ]:
        path = tmp_path / "brokerside.yaml"
        path.write_text(
            f"broker.id: 1\nlisteners: [{{name: C, bind: '127.0.0.1:9092', upstream: '127.0.0.1:3'}}]\n{lines}"
        )
        done = features("check", "-c", str(path))
        assert done == (0, f"{path}: ok, feature levels are disabled: {why}\n", ""), (lines, why)


@pytest.mark.promise(
    "features.md", "`features check` exits with 0 where this release fits, and with 1 where that is not known."
)
def test_a_cluster_that_cannot_be_asked_says_nothing_about_the_levels(features: Run, tmp_path: Path) -> None:
    path = tmp_path / "brokerside.yaml"
    server = f"127.0.0.1:{free_port()}"
    listeners = "[{name: C, bind: '127.0.0.1:9092', upstream: '127.0.0.1:3'}]"
    path.write_text(f"broker.id: 1\nlisteners: {listeners}\ninternal.bootstrap.servers: {server}\n")
    code, output, errors = features("check", "-c", str(path))
    assert (code, output) == (1, "")
    assert errors.startswith("brokerside: __brokerside_features: ")
