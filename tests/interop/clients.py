"""The client programs: how each is built in the cache folder, and run."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from proxy.local.jars import cache_dir

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

BUILD_TIMEOUT = 900.0
"""Seconds for a build with nothing cached, downloads included: the collector's took 265 beside other tests."""

BUILDING = pytest.mark.timeout(2 * BUILD_TIMEOUT)
"""Of tests that build a program."""

RUN_TIMEOUT = 200.0
"""Seconds for one program; the slowest are the Java tools, eleven one after the other."""


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    client: str
    version: str
    codecs: tuple[str, ...]
    partitions: int
    """Of the topic, as described to it."""
    produced: int
    """Records acknowledged."""
    consumed: int
    committed: int
    """Sum of the offsets its group has committed."""
    sha256: str
    """Of the lines it consumed; see ``digest``."""


def digest(lines: Sequence[str]) -> str:
    """SHA-256 of the lines in sorted order, joined by line feeds."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


@dataclass(frozen=True)
class Client:
    """``build`` makes the program ready and returns its command line, or skips the test with a reason."""

    name: str
    build: Callable[[], list[str]]

    def run(self, arguments: Sequence[str], lines: Sequence[str], ca: Path | None = None) -> Report:
        """Build it where needed, run it on ``lines``, and return what it printed. ``ca``: for TLS."""
        trusted = {} if ca is None else {"TLS_CA": str(ca)}
        output = _run([*self.build(), *arguments], RUN_TIMEOUT, text="\n".join(lines) + "\n", **trusted)
        return msgspec.json.decode(output, type=Report)


def _python(name: str) -> Client:
    return Client(name, lambda: [sys.executable, "-m", "tests.interop.python_clients", name])


def _kafkajs() -> list[str]:
    """The command line of the program of kafkajs, made ready."""
    node, npm = _installed("node"), _installed("npm")
    source, target = HERE / "kafkajs", _cache() / "kafkajs"
    target.mkdir(exist_ok=True)
    lock, installed = (source / "package-lock.json").read_text(), target / "installed.json"
    with _builds_one_at_a_time():
        for name in ("package.json", "package-lock.json", "main.mjs"):
            if not (target / name).exists() or (target / name).read_bytes() != (source / name).read_bytes():
                shutil.copy(source / name, target)  # else another process may be about to read it
        if not installed.exists() or installed.read_text() != lock:
            _fetch([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], target)
            installed.write_text(lock)
    return [node, str(target / "main.mjs")]


def go(module: str, package: str = ".") -> list[str]:
    """The command line of a program in Go, built."""
    compiler, target = _installed("go"), _cache() / f"{module}-{Path(package).name}"
    with _builds_one_at_a_time():
        _fetch([compiler, "mod", "download"], HERE / module)
        _run([compiler, "build", "-trimpath", "-o", str(target), package], BUILD_TIMEOUT, folder=HERE / module)
    return [str(target)]


@contextmanager
def _builds_one_at_a_time() -> Iterator[None]:
    """Several processes run tests; two that build the same program would each replace what the other one runs."""
    with (_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def _fetch(command: list[str], folder: Path) -> None:
    """Get what a client needs. Where that cannot be had, the test is skipped: nothing is known about the sidecar."""
    done = _start(command, BUILD_TIMEOUT, folder)
    if done.returncode:
        pytest.skip(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-500:]}")


def _cache() -> Path:
    folder = cache_dir() / "interop"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: list[str], timeout: float, *, folder: Path = ROOT, text: str = "", **environment: str) -> str:
    done = _start(command, timeout, folder, text, environment)
    if done.returncode:
        pytest.fail(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-5000:]}", pytrace=False)
    return done.stdout


def _start(
    command: list[str],
    timeout: float,
    folder: Path,
    text: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, input=text, env=os.environ | environment, capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip


CLIENTS = (
    _python("kafka-python"),
    Client("kafkajs", _kafkajs),
    Client("franz-go", lambda: go("go_clients", "./franz_go")),
    Client("sarama", lambda: go("go_clients", "./sarama")),
    _python("java-console-tools"),
)
