"""A machine of its own with systemd as process 1, on this machine's kernel and network (``systemd-nspawn``)."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy import debian
from tests.deploy.running import until
from tests.tools import fetched

PACKAGES = "systemd,systemd-sysv,dbus,python3,libstdc++6,libzstd1,ca-certificates"
BOOT_TIMEOUT = 60
STOP_TIMEOUT = 60
HALT = signal.SIGRTMIN + 4
"""What systemd as process 1 takes for "power off"."""

OPTIONS = ("--quiet", "--register=no", "--keep-unit", "--volatile=overlay")


class Machine:
    """A booted one; what it writes is gone with it."""

    def __init__(self, init: int) -> None:
        self._init = init

    def __call__(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            ["nsenter", "--target", str(self._init), "--all", "env", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}"
        return done.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        return self("systemctl", "show", "--value", "--property", name, unit)


def _program() -> tuple[Path, Path | None]:
    try:
        return fetched.debian("systemd-nspawn", ["systemd-container"])
    except fetched.MissingError as missing:
        pytest.skip(f"no systemd-nspawn: {missing}")


def run(command: list[str], binds: Mapping[Path, str]) -> tuple[int, str]:
    """Run one command in a machine that is not booted; return its exit code and all that it prints."""
    root = debian.cached("systemd", PACKAGES)
    program, unpacked = _program()
    done = subprocess.run(
        [program, *OPTIONS, "--directory", root, *_binds(binds), "--pipe", *command],
        env=os.environ | fetched.environment_of(unpacked) | {"SYSTEMD_LOG_LEVEL": "warning", "SYSTEMD_COLORS": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOOT_TIMEOUT,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if "/run/systemd/nspawn/propagate" not in line]  # nspawn's own
    return done.returncode, "\n".join(lines)


@contextmanager
def booted(binds: Mapping[Path, str], log: Path) -> Iterator[Machine]:
    """Boot one; ``binds``: files and folders of this machine, read-only, and where they are in that one.

    Skips the test where the kernel does not allow it.
    """
    root = debian.cached("systemd", PACKAGES)
    program, unpacked = _program()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, *OPTIONS, "--directory", root, *_binds(binds), "--boot", "--console=pipe"],
            env=os.environ | fetched.environment_of(unpacked),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    init = 0
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def started() -> bool:
            nonlocal init
            if process.poll() is not None:
                pytest.skip(f"systemd-nspawn does not run here: {log.read_text().strip()[-300:]}")
            init = int((children.read_text().split() or ["0"])[-1])
            return init != 0 and _state(init) in ("running", "degraded")

        until(started, "the machine has booted", BOOT_TIMEOUT)
        yield Machine(init)
    finally:
        if init:
            os.kill(init, HALT)
        else:
            process.terminate()
        process.wait(STOP_TIMEOUT)


def _state(init: int) -> str:
    done = subprocess.run(
        ["nsenter", "--target", str(init), "--all", "systemctl", "is-system-running"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout.strip()


def _binds(binds: Mapping[Path, str]) -> list[str]:
    return [f"--bind-ro={here}:{there}" for here, there in binds.items()]
