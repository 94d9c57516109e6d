"""What a sidecar needs to start is named where it lacks, and what it does not need is not imported."""

import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config import Config, load
from proxy.errors import LocalError
from proxy.local.ports import HOST, free_ports
from proxy.start_checks import Machine, find_shortages

LARGE = Machine(1_000_000, 65_535, 64 * 2**30)


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def made(**settings: Any) -> Config:
        path = tmp_path / "sidecar.yaml"
        bind, upstream, admin = (f"{HOST}:{port}" for port in free_ports(3))
        listener = {"name": "CLIENT", "bind": bind, "upstream": upstream}
        path.write_text(yaml.safe_dump({"broker.id": 1, "listeners": [listener], "admin": {"bind": admin}, **settings}))
        return load(path, {})

    return made


def shortages(config: Config, **machine: int | None) -> dict[str, dict[str, Any]]:
    return dict(find_shortages(config, LARGE._replace(**machine)))


@pytest.mark.promise("restart.md", "The sidecar warns at its start of too few descriptors for its limits.")
def test_descriptors_are_compared_with_the_connections_that_may_be_open(config: Any) -> None:
    assert shortages(config(workers=8, quotas={"max.connections": 100_000})) == {}, "a large machine lacks nothing"
    quotas = {"max.connections": 5_000}
    for workers, needed in ((1, 10_128), (2, 5_100), (3, 3_434)):
        found = shortages(config(workers=workers, quotas=quotas), descriptors=needed - 1)
        expected = {"wanted": needed, "allowed": needed - 1, "max_connections": 5_000, "setting": "RLIMIT_NOFILE"}
        assert found == {"descriptors_low": expected}
        assert shortages(config(workers=workers, quotas=quotas), descriptors=needed) == {}
        assert shortages(config(workers=workers), descriptors=needed - 1) == {}, "without max.connections"
    settings = {
        "quotas": quotas,
        "coordinator": {"enabled": True, "partitions": 20, "max.consumers": 9},
        "internal.bootstrap.servers": "127.0.0.1:19094",
    }
    needed = 10_128 + 2 * 20 * 16  # for each partition of the coordinator
    assert shortages(config(**settings), descriptors=needed) == {}
    assert shortages(config(**settings), descriptors=needed - 1)["descriptors_low"]["wanted"] == needed


@pytest.mark.promise("restart.md", "The sidecar warns at its start of a short backlog, and of little memory.")
def test_backlog_and_memory_are_compared_with_what_all_processes_need(config: Any) -> None:
    expected: dict[str, Any] = {"wanted": 4096, "allowed": 128, "setting": "net.core.somaxconn"}
    assert shortages(config(), backlog=128) == {"backlog_cut": expected}
    assert shortages(config(**{"socket.listen.backlog.size": 128}), backlog=128) == {}
    assert shortages(config(), backlog=None, memory=None) == {}
    for workers, mebibytes in ((1, 134), (2, 322), (4, 590)):
        needed = mebibytes * 2**20
        expected = {"wanted_bytes": needed, "allowed_bytes": needed - 1, "workers": workers}
        assert shortages(config(workers=workers), memory=needed - 1) == {"memory_low": expected}
        assert shortages(config(workers=workers), memory=needed) == {}


@pytest.mark.promise("restart.md", "A sidecar with too few descriptors to run says how many it needs, and exits.")
def test_too_few_descriptors_refuse_the_start(tmp_path: Path, config: Any) -> None:
    with pytest.raises(LocalError, match="RLIMIT_NOFILE is 64, and at least 65 descriptors are needed"):
        find_shortages(config(), LARGE._replace(descriptors=64))
    with pytest.raises(LocalError, match="at least 73 descriptors"):
        find_shortages(config(workers=2), LARGE._replace(descriptors=72))
    config()
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "run", "-c", str(tmp_path / "sidecar.yaml")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert "brokerside: RLIMIT_NOFILE is 60, and at least 65 descriptors are needed" in done.stderr
    assert "Traceback" not in done.stderr


NOT_FOR_RUN = {
    "aiohttp",
    *("rich", "pygments"),  # structlog takes them where they are installed
    *("pyspark", "pandas", "pyarrow", "numpy", "deltalake", "duckdb", "aiokafka", "kafka"),
    *("proxy.local", "spark_jobs.run", "spark_jobs.query"),
}
"""Modules of the jobs, the demo, the tests and of output for people."""

SHOW = "import atexit, sys; atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.__stdout__))\n"


@pytest.mark.promise("install.md", "A sidecar imports nothing of other commands, nor librdkafka in vain.")
def test_run_imports_nothing_of_the_other_commands(tmp_path: Path) -> None:
    """From the start of a sidecar without observers to its end."""
    path = tmp_path / "brokerside.yaml"
    bind, admin, upstream = free_ports(3)
    path.write_text(
        f"broker.id: 1\nadmin: {{bind: '127.0.0.1:{admin}'}}\n"
        f"listeners: [{{name: C, bind: '127.0.0.1:{bind}', upstream: '127.0.0.1:{upstream}'}}]\n"
    )
    code = f"{SHOW}sys.argv[1:] = ['run', '-c', {str(path)!r}]\nfrom proxy.cli import main\nmain()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any('"started"' in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    imported = set(output.splitlines())
    assert {"proxy.net.relay", "structlog", "uvloop"} <= imported
    assert imported & (NOT_FOR_RUN | {"confluent_kafka", "observers.audit"}) == set()


@pytest.mark.promise("observers.md", "An observer may import what the sidecar itself leaves out.")
def test_garbage_is_looked_for_after_the_start_and_an_observer_may_import_rich() -> None:
    counts = "gc.get_freeze_count() > 10_000 > len(gc.get_objects())"
    start = "from proxy.commands import sidecar\nwith sidecar.lean(): import proxy.run"
    code = (
        f"{start}\nimport gc\nassert gc.isenabled() and {counts}\nassert 'rich' not in sys.modules\nimport rich.table"
    )
    done = subprocess.run([sys.executable, "-c", SHOW + code], capture_output=True, text=True, timeout=240, check=True)
    assert {"proxy.run", "rich.table"} <= set(done.stdout.splitlines())
