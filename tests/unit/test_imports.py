"""What a command does not need it does not import: a sidecar restarts often, and modules cost time and memory."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from proxy.local.ports import free_ports

NOT_FOR_RUN = {
    "aiohttp",
    *("rich", "pygments"),  # structlog takes them where they are installed
    *("pyspark", "pandas", "pyarrow", "numpy", "deltalake", "duckdb", "aiokafka", "kafka"),
    *("proxy.local", "spark_jobs.run", "spark_jobs.query"),
}
"""Modules of the jobs, the demo, the tests and of output for people."""

SHOW = "import atexit, sys; atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.__stdout__))\n"


START = "from proxy.commands import sidecar\nwith sidecar.lean(): import proxy.run"


def imported_by(code: str) -> set[str]:
    """Names of the modules that are loaded after ``code`` ran in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", SHOW + code], capture_output=True, text=True, timeout=240, check=True)
    return set(done.stdout.splitlines())


@pytest.fixture(scope="module")
def imported_by_run(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the modules of a sidecar without observers, from its start to its end."""
    path = tmp_path_factory.mktemp("run") / "brokerside.yaml"
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
    return set(output.splitlines())


@pytest.mark.promise("install.md", "A sidecar imports nothing of other commands, nor librdkafka in vain.")
def test_run_imports_nothing_of_the_other_commands(imported_by_run: set[str]) -> None:
    assert {"proxy.net.relay", "structlog", "uvloop"} <= imported_by_run
    assert imported_by_run & (NOT_FOR_RUN | {"confluent_kafka", "observers.audit"}) == set()


@pytest.mark.promise("observers.md", "An observer may import what the sidecar itself leaves out.")
def test_garbage_is_looked_for_after_the_start_and_an_observer_may_import_rich() -> None:
    counts = "gc.get_freeze_count() > 10_000 > len(gc.get_objects())"
    code = (
        f"{START}\nimport gc\nassert gc.isenabled() and {counts}\nassert 'rich' not in sys.modules\nimport rich.table"
    )
    assert {"proxy.run", "rich.table"} <= imported_by(code)


def test_parts_are_imported_when_they_are_needed() -> None:
    """One interpreter, part after part: each loads what it needs, and not what it will not use."""
    commands = {"asyncio", "pydantic", "structlog", "proxy.config", "proxy.run"}
    assert imported_by("import proxy.cli") & (NOT_FOR_RUN | commands) == set()
    found = imported_by(
        "import observers.dispatch, proxy.client\nfrom proxy.client.consumer import CoordinatedConsumer\n"
        "from proxy.coordinator.subscription import parse_topic_count\n"
        """parse_topic_count('{"t": 1}').select(["t"])\n"""
    )
    assert "proxy.client.consumer.membership" in found
    assert found & {"confluent_kafka", "re2"} == set(), "before a consumer, a producer or a pattern is used"
    code = "from proxy.coordinator.subscription import parse_topic_count\nparse_topic_count('*1*t').select(['t'])"
    assert "re2" in imported_by(code)
