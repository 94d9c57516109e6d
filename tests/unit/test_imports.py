"""What a command does not need it does not import: a sidecar restarts often, and modules cost time and memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

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
