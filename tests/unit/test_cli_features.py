"""``brokerside features``: what is a wrong usage, and what nobody can do. Nothing is sent in either case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import free_port
from tests.unit.terminal import Terminal, brokerside

__all__ = ["brokerside"]

AUDIT = "brokerside.audit.event.schema"
ALLOWED = (
    f"allowed are features of the fleet, brokerside.NAME; this release has {AUDIT}, brokerside.coordinator.protocol, "
    "brokerside.broker.metadata, brokerside.quota.ip"
)


@pytest.mark.promise(
    "features.md",
    "A wrong usage of `brokerside features` exits with 2 and without a request, and names what is allowed.",
)
def test_a_wrong_usage_is_named_with_what_is_allowed(brokerside: Terminal) -> None:
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
        done = brokerside("features", *arguments)
        assert (done.code, done.out) == (2, ""), (arguments, said)
        assert said in done.err, (arguments, said)


@pytest.mark.promise(
    "features.md", "`features check` exits with 0 where this release fits, and with 1 where that is not known."
)
def test_what_keeps_no_levels_fits_and_a_cluster_that_cannot_be_asked_says_nothing(
    brokerside: Terminal, tmp_path: Path
) -> None:
    path, server = tmp_path / "brokerside.yaml", f"internal.bootstrap.servers: 127.0.0.1:{free_port()}\n"
    base = "broker.id: 1\nlisteners: [{name: C, bind: '127.0.0.1:9092', upstream: '127.0.0.1:3'}]\n"
    for lines, why in [
        ("", "internal.bootstrap.servers is missing"),
        (f"{server}features: {{enabled: false}}\n", "features.enabled is false"),
    ]:
        path.write_text(base + lines)
        done = brokerside("features", "check", "-c", str(path))
        assert (done.code, done.out) == (0, f"{path}: ok, feature levels are disabled: {why}\n"), lines
    path.write_text(base + server)
    done = brokerside("features", "check", "-c", str(path))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("brokerside: __brokerside_features: ")
