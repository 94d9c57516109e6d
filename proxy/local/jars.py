"""The one resolver of every jar: Kafka's brokers and tools, Spark's Kafka connector, and what tests need.

Jars are pinned one by one (``jars.lock``) and kept in one cache folder, verified. When all are there nothing is
started and no network is used: one ``stat`` for each jar.

``python -m proxy.local.jars fetch [SET…]`` fills the cache, ``python -m proxy.local.jars lock`` pins anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from proxy.errors import BrokersideError, LocalError
from proxy.local.download import VERIFIED_MTIME, download
from proxy.local.java import java
from proxy.local.pins import Pin, Sets, parse

__all__ = ["LOCK_FILE", "SETS", "SETUP_SETS", "cache_dir", "java", "provide", "resolve"]

LOCK_FILE = Path(__file__).with_name("jars.lock")
SETS: Sets = parse(LOCK_FILE.read_text())
SETUP_SETS = ("kafka-4.3.1", "spark-4.2.0", "delta-4.4.0")
"""What the demo and most tests need."""

REPORT_EVERY = 2.0
"""Seconds between two lines of progress where there is no terminal to draw on."""


def cache_dir() -> Path:
    """Folder for what can be fetched or made again: ``$BROKERSIDE_CACHE``, else below ``$XDG_CACHE_HOME``."""
    chosen = os.environ.get("BROKERSIDE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "brokerside"


def resolve(set_name: str, *, progress: bool = True, verify: bool = False) -> list[Path]:
    """Return the jars of a set, sorted by name; fetch those that are missing or damaged.

    ``verify`` reads every jar and compares its checksum; otherwise only those that changed since they were verified.
    Raises LocalError: unknown set, no Java, no network, wrong checksum, no space, no permission.
    """
    if set_name not in SETS:
        raise LocalError(f"there is no set of jars named {set_name!r}; there are {', '.join(SETS)}")
    return provide(SETS[set_name], cache_dir() / "jars", progress=progress, verify=verify)


def provide(pins: Iterable[Pin], folder: Path, *, progress: bool, verify: bool = False) -> list[Path]:
    """Return the files of ``pins`` in ``folder``, sorted by name; fetch those that are missing or damaged."""
    wanted = sorted(set(pins), key=lambda pin: pin.file_name)
    try:
        if _missing(wanted, folder, verify=verify):
            folder.mkdir(parents=True, exist_ok=True)
            with _only_one(folder, progress=progress):
                # Another process may have fetched them while this one waited.
                if missing := _missing(wanted, folder, verify=False):
                    with _report(missing, enabled=progress) as on_jar:
                        download(missing, folder, on_jar)
    except OSError as error:
        size = sum(pin.size for pin in wanted) // 1_000_000 + 1
        raise LocalError(
            f"cannot keep jars in {folder}: {error.strerror or error}; make room for {size} MB, "
            "or set BROKERSIDE_CACHE to another folder"
        ) from None
    return [folder / pin.file_name for pin in wanted]


def _missing(pins: Iterable[Pin], folder: Path, *, verify: bool) -> list[Pin]:
    return [pin for pin in pins if not _intact(folder / pin.file_name, pin, verify=verify)]


def _intact(path: Path, pin: Pin, *, verify: bool) -> bool:
    """Whether ``path`` is the pinned jar; a jar that is not is removed."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if status.st_size == pin.size:
        if status.st_mtime == VERIFIED_MTIME and not verify:
            return True
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found == pin.sha256:
            os.utime(path, (VERIFIED_MTIME, VERIFIED_MTIME))
            return True
    path.unlink(missing_ok=True)
    return False


@contextmanager
def _only_one(folder: Path, *, progress: bool) -> Iterator[None]:
    """Let only one process at a time change the cache."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                print(f"waiting for another process that fetches jars into {folder}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _report(pins: Sequence[Pin], *, enabled: bool) -> Iterator[Callable[[Pin], None]]:
    """Show on stderr how many of ``pins`` are there: one line that changes on a terminal, else a line now and then."""
    terminal = enabled and sys.stderr.isatty()
    total = sum(pin.size for pin in pins)
    count = done = 0
    shown = time.monotonic()
    if enabled:
        print(f"fetching {len(pins)} jars, {total / 1e6:.0f} MB", file=sys.stderr)

    def on_jar(pin: Pin) -> None:
        nonlocal count, done, shown
        count, done = count + 1, done + pin.size
        text = f"  {count} of {len(pins)} jars, {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        if terminal:
            print(f"\r{text}", end="", file=sys.stderr, flush=True)
        elif enabled and time.monotonic() - shown > REPORT_EVERY:
            shown = time.monotonic()
            print(text, file=sys.stderr)

    try:
        yield on_jar
    finally:
        if terminal and count:
            print(file=sys.stderr)


def _main(arguments: Sequence[str]) -> int:
    command, names = (arguments[0], arguments[1:]) if arguments else ("", ())
    try:
        if command == "fetch":
            for name in names or SETUP_SETS:
                print(f"{name}: {len(resolve(name))} jars in {cache_dir() / 'jars'}", file=sys.stderr)
        elif command == "lock":
            from proxy.local.lock_jars import lock

            lock(LOCK_FILE)
        else:
            print(f"usage: python -m proxy.local.jars fetch [{'|'.join(SETS)}]… | lock", file=sys.stderr)
            return 2
    except BrokersideError as error:
        print(f"brokerside: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
