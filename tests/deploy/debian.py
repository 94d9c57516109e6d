"""File systems of Debian, made with ``mmdebstrap`` and kept in the cache folder."""

import os
import subprocess
from pathlib import Path

import pytest

from proxy.local.jars import cache_dir
from tests.tools import fetched

TIMEOUT = 550


def bootstrap(to: Path, packages: str) -> Path:
    """Make ``to``, a folder or a tar, of Debian's ``fetched.SUITE`` with ``packages`` (separated by commas) if it is
    missing.

    Skips the test where that cannot be done.
    """
    if os.geteuid() != 0:
        pytest.skip("file systems of Debian are made by root")
    if to.exists():
        return to
    try:
        program, unpacked = fetched.debian("mmdebstrap", ["mmdebstrap", "debian-archive-keyring"])
        mirror = fetched.mirror()
    except fetched.MissingError as missing:
        pytest.skip(f"no mmdebstrap: {missing}")
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f"part-{to.name}")
    done = subprocess.run(
        [program, "--variant=minbase", f"--include={packages}", fetched.SUITE, part, mirror],
        env=os.environ | fetched.environment_of(unpacked),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no Debian {fetched.SUITE}: {done.stderr.strip().splitlines()[-1]}")
    part.rename(to)
    return to


def cached(name: str, packages: str) -> Path:
    return bootstrap(cache_dir() / "deploy" / f"{name}-{fetched.SUITE}", packages)
