"""The command's contract with scripts: exit codes, and errors that say what and where."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.local.ports import free_ports

FIVE_MISTAKES = """
broker.id: -1
internal.bootstrap.servers: 127.0.0.1:19094
listeners:
  - name: CLIENT
    bind: nowhere
    upstream: 127.0.0.1:99999
    security.protocol: TLS
observer.class.names: [observers.audit:AuditObserver]
quota: {}
"""


def brokerside(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proxy", *arguments], capture_output=True, text=True, timeout=240, check=False
    )


def test_output_that_nobody_reads_ends_a_command_without_a_word() -> None:
    """As ``brokerside tables | head``, once head has ended."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        command = [sys.executable, "-m", "proxy", "tables"]
        done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


def test_five_mistakes_give_five_located_errors_and_exit_1(tmp_path: Path) -> None:
    path = tmp_path / "brokerside.yaml"
    path.write_text(FIVE_MISTAKES)
    for command in (["check-config", str(path)], ["run", "-c", str(path)]):
        done = brokerside(*command)
        assert done.returncode == 1
        assert done.stdout == ""
        assert str(path) in done.stderr
        lines = done.stderr.strip().splitlines()
        for key in (
            "broker.id",
            "listeners[0].bind",
            "listeners[0].upstream",
            "listeners[0].security.protocol",
            "quota",
        ):
            assert sum(line.strip().startswith(f"{key}:") for line in lines) == 1, done.stderr
        assert "5 problem" in done.stderr


def test_a_good_configuration_is_said_to_be_good(tmp_path: Path) -> None:
    path = tmp_path / "brokerside.yaml"
    path.write_text("broker.id: 1\nlisteners: [{name: C, bind: '127.0.0.1:9092', upstream: '127.0.0.1:19092'}]\n")
    done = brokerside("check-config", str(path))
    assert done.returncode == 0
    assert "ok" in done.stdout


def test_a_good_configuration_that_cannot_do_all_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "brokerside.yaml"
    path.write_text(
        "broker.id: 1\nlisteners: [{name: C, bind: '127.0.0.1:9092', upstream: '127.0.0.1:19092'}]\n"
        "internal.bootstrap.servers: 127.0.0.1:3\n"
        "internal: {security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER}\n"
    )
    done = brokerside("check-config", str(path))
    assert done.returncode == 0
    assert "ok" in done.stdout
    assert "the cluster's quotas do not count here" in done.stderr
    assert "OAUTHBEARER" in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:Observer", "module 'nowhere' cannot be imported"),
        ("observers.audit:Nobody", "has no class 'Nobody'"),
        ("pathlib:Path", "does not fit the observer interface"),
    ],
)
def test_an_observer_that_run_would_refuse_is_refused(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / "brokerside.yaml"
    path.write_text(
        "broker.id: 1\nlisteners: [{name: C, bind: '127.0.0.1:9092', upstream: '127.0.0.1:19092'}]\n"
        f"internal.bootstrap.servers: 127.0.0.1:3\nobserver.class.names: ['{name}']\n"
    )
    done = brokerside("check-config", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{path}: observer.class.names: observer {name!r}" in done.stderr
    assert said in done.stderr


def test_a_taken_port_is_named_and_nothing_else_is_started(tmp_path: Path) -> None:
    import socket

    path = tmp_path / "brokerside.yaml"
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = taken.getsockname()[1]
        path.write_text(
            f"broker.id: 1\nadmin: {{bind: '127.0.0.1:{free}'}}\n"
            f"listeners: [{{name: C, bind: '127.0.0.1:{bind}', upstream: '127.0.0.1:1'}}]\n"
        )
        done = brokerside("run", "-c", str(path))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{bind}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_of_the_admin_endpoint_is_named_once(tmp_path: Path) -> None:
    import socket

    path = tmp_path / "brokerside.yaml"
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        admin = f"127.0.0.1:{taken.getsockname()[1]}"
        path.write_text(
            f"broker.id: 1\nadmin: {{bind: '{admin}'}}\n"
            f"listeners: [{{name: C, bind: '127.0.0.1:{free}', upstream: '127.0.0.1:1'}}]\n"
        )
        done = brokerside("run", "-c", str(path))
    assert done.returncode == 1
    assert f"cannot listen on {admin} (admin.bind): {os.strerror(errno.EADDRINUSE)}" in done.stderr


def test_a_missing_observer_refuses_the_start_by_name(tmp_path: Path) -> None:
    path = tmp_path / "brokerside.yaml"
    path.write_text(
        "broker.id: 1\ninternal.bootstrap.servers: 127.0.0.1:1\nobserver.class.names: [nowhere.to:BeFound]\n"
        "listeners: [{name: C, bind: '127.0.0.1:9092', upstream: '127.0.0.1:19092'}]\n"
    )
    done = brokerside("run", "-c", str(path))
    assert done.returncode == 1
    assert "nowhere.to:BeFound" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_usage_exits_2() -> None:
    assert brokerside("run").returncode == 2
    assert brokerside("no-such-command").returncode == 2


def test_a_command_whose_extra_is_missing_says_what_to_install() -> None:
    code = "import sys; sys.modules['duckdb'] = None; sys.argv[1:] = ['tables']; from proxy.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("brokerside: this command needs duckdb, which is not installed; run: ")
    assert done.stderr.endswith(f" -m pip install '{Path(__file__).parents[2]}[query]'\n")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--api-key", "99999", "api keys from 10000 to 32700"),
        ("--api-key", "x", "api keys from 10000 to 32700"),
        ("--broker", "99999999999", "node ids up to 2147483647, and -1"),
        ("--broker", "-2", "node ids up to 2147483647, and -1"),
    ],
)
def test_numbers_of_broker_metadata_that_no_request_holds_are_a_wrong_usage(
    option: str, value: str, allowed: str
) -> None:
    done = brokerside("broker-metadata", "127.0.0.1:1", f"{option}={value}")

    assert done.returncode == 2
    assert f"{value!r}: allowed are {allowed}" in done.stderr
