"""The command line itself: version, near misses, names of options, the environment, completion in a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from proxy import __version__
from tests.integration.conftest import free_port
from tests.unit.test_cli import brokerside


def with_environment(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", *arguments]
    env = os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)


def test_the_version_is_an_option_as_well() -> None:
    done = brokerside("--version")
    assert (done.returncode, done.stdout) == (0, f"brokerside {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["conections"], "there is no command 'conections'; did you mean connections?"),
        (["cluster", "statu"], "there is no command 'statu'; did you mean status?"),
        (["frobnicate"], "there is no command 'frobnicate'; brokerside --help lists them"),
        (["quotas", "--amin", "x:1"], "unrecognized arguments: --amin x:1; did you mean --admin?"),
        (["jobs", "run", "--bootstrap-servr=x"], "did you mean --bootstrap-server?"),
        (["top", "--by", "clientid"], "did you mean client_id?"),
        (["quotas", "-o", "jsn"], "did you mean json?"),
    ],
)
def test_a_near_miss_is_answered_with_what_may_have_been_meant(arguments: list[str], said: str) -> None:
    done = brokerside(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    usage, *_, error = done.stderr.splitlines()
    assert usage.startswith("usage: brokerside")
    assert error.endswith(said)


def test_the_error_of_a_command_has_the_usage_of_that_command() -> None:
    assert brokerside("quotas", "--amin", "x").stderr.startswith("usage: brokerside quotas [-h] [--admin HOST:PORT]")


def test_commands_for_programs_are_not_offered() -> None:
    assert "worker" not in brokerside("workr").stderr


def test_the_address_of_the_sidecar_is_the_option_then_the_environment_then_the_default() -> None:
    one, other = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    done = with_environment("quotas", BROKERSIDE_ADMIN=one)
    assert f"no sidecar answers at {one}" in done.stderr
    done = with_environment("quotas", "--admin", other, BROKERSIDE_ADMIN=one)
    assert f"no sidecar answers at {other}" in done.stderr
    done = with_environment("quotas", BROKERSIDE_ADMIN="nowhere")
    assert done.returncode == 2
    assert "argument --admin: 'nowhere' is not host:port (from BROKERSIDE_ADMIN, unless it was given)" in done.stderr


def test_the_tables_are_those_of_the_environment_without_an_option() -> None:
    done = with_environment("query", "SELECT 1", BROKERSIDE_TABLES="/nowhere/tables")
    assert "there are no tables in /nowhere/tables" in done.stderr


@pytest.mark.parametrize("arguments", [["127.0.0.1:PORT"], ["--bootstrap-server", "127.0.0.1:PORT"]])
def test_the_broker_is_named_as_kafka_s_tools_name_it_or_without_an_option(arguments: list[str]) -> None:
    port = free_port()
    done = brokerside("broker-metadata", *(one.replace("PORT", str(port)) for one in arguments))
    assert (done.returncode, done.stderr) == (1, f"brokerside: 127.0.0.1:{port}: Connection refused\n")


@pytest.mark.parametrize("option", ["--bootstrap-server", "--bootstrap-servers"])
@pytest.mark.parametrize("config", ["--command-config", "--kafka-config"])
def test_jobs_take_kafka_s_names_and_those_they_had_first(option: str, config: str) -> None:
    done = brokerside("jobs", "run", option, "127.0.0.1:1", config, "/nowhere/client.properties")
    assert (done.returncode, done.stderr) == (
        1,
        "brokerside: /nowhere/client.properties cannot be read: No such file or directory\n",
    )


COMPLETE = """
eval "$("$PYTHON" -m proxy completion bash)"
while read -r -a COMP_WORDS; do
  test "${COMP_WORDS[-1]}" != "''" || COMP_WORDS[-1]=
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _shtab_brokerside brokerside "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
  echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_values() -> None:
    wanted = {
        "brokerside quo": "quotas",
        "brokerside cluster ''": "up down status",
        "brokerside quotas --a": "--admin",
        "brokerside top --sort b": "bytes-in bytes-out",
        "brokerside query --ask top-t": "top-talkers",
    }
    done = subprocess.run(
        ["bash", "-c", COMPLETE],
        input="\n".join(wanted) + "\n",
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=os.environ | {"PYTHON": sys.executable},
    )
    assert dict(zip(wanted, done.stdout.splitlines(), strict=True)) == wanted


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script_too(shell: str) -> None:
    done = brokerside("completion", shell)
    assert done.returncode == 0
    assert "check-config" in done.stdout
