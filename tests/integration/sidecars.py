"""Sidecars of a test's own, in front of the brokers of a run."""

import asyncio
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from proxy.local.sidecars import SidecarProcess
from proxy.local.state import Node

PATIENCE = 60.0
Found = TypeVar("Found")


def config_of(node: Node, **settings: Any) -> dict[str, Any]:
    """What the cluster has written for the sidecar of ``node``, with other settings; None takes one away."""
    config = yaml.safe_load((node.home.parent / f"sidecar-{node.id}.yaml").read_text()) | settings
    return {key: value for key, value in config.items() if value is not None}


@contextmanager
def running(config: Mapping[str, Any], folder: Path, **environ: str) -> Iterator[SidecarProcess]:
    """A sidecar that is ready. It has to end by itself when it is stopped."""
    with spawned(config, folder, **environ) as sidecar:
        sidecar.wait_ready()
        yield sidecar


@contextmanager
def spawned(config: Mapping[str, Any], folder: Path, **environ: str) -> Iterator[SidecarProcess]:
    """The same, which need not be ready."""
    path = folder / f"sidecar-{uuid.uuid4().hex[:8]}.yaml"
    path.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        sidecar = SidecarProcess.spawn(path, path.with_suffix(".log"), config["admin"]["bind"])
    try:
        yield sidecar
    finally:
        assert sidecar.stop()


def preloaded(source: Path, folder: Path) -> Path:
    """A library in C for LD_PRELOAD, compiled."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip(f"there is no C compiler, which {source.name} needs")
    path = folder / f"{source.stem}.so"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def until(look: Callable[[], Found], seconds: float = PATIENCE) -> Found:
    """What ``look`` returns as soon as that is true: it comes from other processes, which tell nobody."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"it did not come to that, but to {found}"
        time.sleep(0.02)
    return found


async def until_async(look: Callable[[], Found], seconds: float = PATIENCE) -> Found:
    """The same of what this process's own loop does."""
    async with asyncio.timeout(seconds):
        while not (found := look()):  # noqa: ASYNC110  # a counter has no event to wait for
            await asyncio.sleep(0.005)
    return found
