"""The command's contract with people and scripts: exit codes, errors that say what and where, names, completion."""

import errno
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from proxy import __version__, extras
from proxy.local.ports import free_ports
from tests.unit.terminal import Terminal, brokerside

__all__ = ["brokerside"]

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
GOOD = "broker.id: 1\nlisteners: [{name: C, bind: '127.0.0.1:9092', upstream: '127.0.0.1:19092'}]\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "brokerside.yaml"
    path.write_text(GOOD)
    return path


def started(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proxy", *map(str, arguments)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.promise("config.md", "Neither check-config nor run starts anything with a file that has mistakes.")
def test_five_mistakes_give_five_located_errors_and_exit_1(config: Path, brokerside: Terminal) -> None:
    config.write_text(FIVE_MISTAKES)
    run = started("run", "-c", config)
    check = brokerside("check-config", str(config))
    for code, out, err in ((run.returncode, run.stdout, run.stderr), (check.code, check.out, check.err)):
        assert (code, out) == (1, "")
        assert str(config) in err
        assert "5 problem" in err
        lines = [line.strip() for line in err.splitlines()]
        of_listener = (f"listeners[0].{name}" for name in ("bind", "upstream", "security.protocol"))
        for key in ("broker.id", "quota", *of_listener):
            assert sum(line.startswith(f"{key}:") for line in lines) == 1, err


@pytest.mark.promise("config.md", "check-config also says what a good configuration cannot do.")
def test_a_configuration_is_said_to_be_good_or_not(config: Path, brokerside: Terminal) -> None:
    done = brokerside("check-config", str(config))
    assert (done.code, done.err) == (0, "")
    assert "ok" in done.out
    config.write_text(
        f"{GOOD}internal.bootstrap.servers: 127.0.0.1:3\n"
        "internal: {security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER}\n"
    )
    done = brokerside("check-config", str(config))
    assert (done.code, "ok" in done.out) == (0, True)
    assert "the cluster's quotas do not count here" in done.err
    assert "OAUTHBEARER" in done.err
    for name, said in (
        ("nowhere:Observer", "module 'nowhere' cannot be imported"),
        ("observers.audit:Nobody", "has no class 'Nobody'"),
        ("pathlib:Path", "does not fit the observer interface"),
    ):
        config.write_text(f"{GOOD}internal.bootstrap.servers: 127.0.0.1:3\nobserver.class.names: ['{name}']\n")
        done = brokerside("check-config", str(config))
        assert (done.code, done.out) == (1, "")
        assert f"{config}: observer.class.names: observer {name!r}" in done.err
        assert said in done.err
    done_by_run = started("run", "-c", config)
    assert done_by_run.returncode == 1
    assert "pathlib:Path" in done_by_run.stderr
    assert "Traceback" not in done_by_run.stderr


@pytest.mark.promise("restart.md", "A port that is taken refuses the start with an error that names it.")
def test_a_taken_port_is_named_and_nothing_is_started(config: Path) -> None:
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        for bind, admin, key in ((taken, free, ""), (free, taken, " (admin.bind)")):
            config.write_text(
                f"broker.id: 1\nadmin: {{bind: '127.0.0.1:{admin}'}}\n"
                f"listeners: [{{name: C, bind: '127.0.0.1:{bind}', upstream: '127.0.0.1:1'}}]\n"
            )
            done = started("run", "-c", config)
            assert done.returncode == 1
            assert f"cannot listen on 127.0.0.1:{taken}{key}" in done.stderr
            assert os.strerror(errno.EADDRINUSE) in done.stderr
            assert "Traceback" not in done.stderr


@pytest.mark.promise("commands.md", "A command whose output nobody reads any more exits with 141, without a word.")
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


class Installed:
    """What an installer has recorded of where the package came from."""

    def __init__(self, recorded: str | None) -> None:
        self.recorded = recorded

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.recorded


@pytest.mark.promise("install.md", "A command whose optional packages are missing says how to install them.")
def test_a_command_whose_extra_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; sys.modules['duckdb'] = None; sys.argv[1:] = ['tables']; from proxy.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("brokerside: this command needs duckdb, which is not installed; run: ")
    assert done.stderr.endswith(f" -m pip install '{Path(__file__).parents[2]}[query]'\n")

    path = "file:///opt/kafka%20tools/brokerside"
    for recorded, target in (
        (f'{{"url": "{path}", "dir_info": {{}}}}', "'/opt/kafka tools/brokerside[query]'"),
        ('{"url": "file:///tmp/brokerside-0.1.0-cp311.whl"}', "'/tmp/brokerside-0.1.0-cp311.whl[query]'"),
        (None, "'.[query]'"),
        ("what no installer writes", "'.[query]'"),
    ):
        monkeypatch.setattr(extras, "distribution", lambda name, recorded=recorded: Installed(recorded))
        assert extras.install_command("query") == f"{sys.executable} -m pip install {target}"
        assert ("in a checkout" in extras.missing("duckdb", "query")) == (target == "'.[query]'")


@pytest.mark.promise("commands.md", "The error for a wrong command or option names what may have been meant.")
def test_wrong_usage_exits_2_and_a_near_miss_is_answered_with_what_may_have_been_meant(brokerside: Terminal) -> None:
    for arguments, said in (
        ("run", "one of the arguments FILE -c/--config is required"),
        ("conections", "there is no command 'conections'; did you mean connections?"),
        ("cluster statu", "there is no command 'statu'; did you mean status?"),
        ("frobnicate", "there is no command 'frobnicate'; brokerside --help lists them"),
        ("quotas --amin x:1", "unrecognized arguments: --amin x:1; did you mean --admin?"),
        ("jobs run --bootstrap-servr=x", "did you mean --bootstrap-server?"),
        ("top --by clientid", "did you mean client_id?"),
        ("quotas -o jsn", "did you mean json?"),
        ("broker-metadata h:1 --api-key=99999", "'99999': allowed are api keys from 10000 to 32700"),
        ("broker-metadata h:1 --api-key=x", "'x': allowed are api keys from 10000 to 32700"),
        ("broker-metadata h:1 --broker=99999999999", "'99999999999': allowed are node ids up to 2147483647, and -1"),
        ("broker-metadata h:1 --broker=-2", "'-2': allowed are node ids up to 2147483647, and -1"),
    ):
        done = brokerside(*arguments.split())
        assert (done.code, done.out) == (2, ""), arguments
        usage, *_, error = done.err.splitlines()
        assert usage.startswith("usage: brokerside"), arguments
        assert error.endswith(said), arguments
    assert brokerside("quotas", "--amin", "x").err.startswith("usage: brokerside quotas [-h] [--admin HOST:PORT]")
    assert "worker" not in brokerside("workr").err, "commands for programs are not offered"
    done = brokerside("--version")
    assert (done.code, done.out) == (0, f"brokerside {__version__}\n")


@pytest.mark.promise("commands.md", "An option goes before its environment variable, and that before the default.")
def test_addresses_are_those_of_the_option_then_the_environment_then_the_default(
    brokerside: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, port = free_ports(3)
    monkeypatch.setenv("BROKERSIDE_ADMIN", f"127.0.0.1:{one}")
    assert f"no sidecar answers at 127.0.0.1:{one}" in brokerside("quotas").err
    assert f"no sidecar answers at 127.0.0.1:{other}" in brokerside("quotas", "--admin", f"127.0.0.1:{other}").err
    monkeypatch.setenv("BROKERSIDE_ADMIN", "nowhere")
    done = brokerside("quotas")
    assert done.code == 2
    assert "argument --admin: 'nowhere' is not host:port (from BROKERSIDE_ADMIN, unless it was given)" in done.err
    monkeypatch.setenv("BROKERSIDE_TABLES", "/nowhere/tables")
    assert "there are no tables in /nowhere/tables" in brokerside("query", "SELECT 1").err

    # As Kafka's tools name them, or as they were named first.
    for named in ((), ("--bootstrap-server",)):
        done = brokerside("broker-metadata", *named, f"127.0.0.1:{port}")
        assert (done.code, done.err) == (1, f"brokerside: 127.0.0.1:{port}: Connection refused\n")
    file = "/nowhere/client.properties"
    for server in ("--bootstrap-server", "--bootstrap-servers"):
        for option in ("--command-config", "--kafka-config"):
            done = brokerside("jobs", "run", server, "127.0.0.1:1", option, file)
            assert (done.code, done.err) == (1, f"brokerside: {file} cannot be read: No such file or directory\n")


COMPLETE = """
eval "$("$PYTHON" -m proxy completion bash)"
while read -r -a COMP_WORDS; do
  test "${COMP_WORDS[-1]}" != "''" || COMP_WORDS[-1]=
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _shtab_brokerside brokerside "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
  echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.promise("commands.md", "The shell completes commands, options, and names of saved queries.")
def test_shells_complete_commands_options_and_values(brokerside: Terminal) -> None:
    for shell in ("zsh", "tcsh", "fish"):
        done = brokerside("completion", shell)
        assert (done.code, "check-config" in done.out) == (0, True), shell
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    wanted = {
        "brokerside quo": "quotas",
        "brokerside cluster ''": "up down status",
        "brokerside quotas --a": "--admin",
        "brokerside top --sort b": "bytes-in bytes-out",
        "brokerside query --ask top-t": "top-talkers",
    }
    completed = subprocess.run(
        [bash, "-c", COMPLETE],
        input="\n".join(wanted) + "\n",
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=os.environ | {"PYTHON": sys.executable},
    )
    assert dict(zip(wanted, completed.stdout.splitlines(), strict=True)) == wanted
