"""The configuration of a running sidecar, and how it takes over another one: as a whole, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import structlog
from msgspec import Struct, field

from proxy.aside import Aside
from proxy.config import Config, load
from proxy.config.difference import Difference, differences, fingerprint
from proxy.config.document import no_collection
from proxy.config.keys import reloadable, show
from proxy.errors import ConfigError

LOOK_EVERY = 0.5
"""Seconds between two looks at the file. A change acts when it was seen twice, so that no half-written file is read."""

READ_TIMEOUT = 10.0
"""Seconds that reading the file may take, on a file system that answers late; then the reload is rejected."""

WORK, PAUSE = 0.0005, 0.0005
"""Seconds that reading works at a time, and then leaves the interpreter to the traffic: a file of 3,000 addresses takes
0.1 s of work."""

Outcome = Literal["applied", "unchanged", "rejected", "draining"]

log = structlog.get_logger(__name__)


class ReloadResult(Struct, frozen=True):
    """What became of one reload. ``draining``: the sidecar is about to end, and reads nothing any more."""

    result: Outcome
    changed: tuple[str, ...] = ()
    """Keys with a new value, where it was applied."""
    errors: tuple[str, ...] = ()
    """Why it was rejected, one line each."""


class ReloadState(Struct):
    """The running configuration, and what became of the attempts to change it."""

    hash: str
    """Different whenever the running configuration is; the same in every process."""
    loaded_at: float
    """When the file was last read and found good, in seconds since 1970."""
    results: dict[str, int] = field(default_factory=lambda: {"applied": 0, "unchanged": 0, "rejected": 0})
    """Reloads by what became of them."""
    last_errors: list[str] = field(default_factory=list)
    """Of the last reload; empty where it was not rejected."""

    @property
    def last_successful(self) -> bool:
        """Whether the last reload was not rejected; true before the first one."""
        return not self.last_errors


class Pauses:
    """Called again and again by a thread that works: sleeps for ``PAUSE`` after each ``WORK`` seconds."""

    def __init__(self) -> None:
        self._until = time.monotonic() + WORK

    def __call__(self) -> None:
        """Sleep if it is time to."""
        if time.monotonic() >= self._until:
            time.sleep(PAUSE)
            self._until = time.monotonic() + WORK


class Reloader:
    """Belongs to the loop's thread; files are read in another one.

    ``apply`` is called on the loop with each new configuration, whose only differences to the one before are in
    reloadable keys. It must not raise.
    """

    def __init__(
        self,
        file: FileWatch,
        config: Config,
        apply: Callable[[Config], None],
        *,
        load: Callable[[str | os.PathLike[str], Callable[[], None]], Config] = lambda path, pause: load(
            path, pause=pause
        ),
        now: Callable[[], float] = time.time,
    ) -> None:
        """``config``: what ``file`` was loaded as, after it was noted."""
        self.config = config
        self.state = ReloadState(hash=fingerprint(config), loaded_at=now())
        self._apply = apply
        self._load = load
        self._now = now
        self._file = file
        self._stopped = False
        self._requested = asyncio.Event()
        self._reason = ""
        self._turn = asyncio.Lock()
        self._aside = Aside("configuration")
        self._begun = 0
        self._ended = 0
        self._last = ReloadResult("unchanged")

    def request(self, reason: str) -> None:
        """Let ``watch`` reload soon; any number of requests until then are one. For handlers of signals."""
        self._reason = reason
        self._requested.set()

    async def watch(self) -> None:
        """Reload whenever it is requested or the file has changed, until ``stop``."""
        while not self._stopped:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._requested.wait()
            if self._requested.is_set():
                self._requested.clear()
                await self.reload(self._reason)
            elif await self._has_changed():
                await self.reload("file")

    def stop(self) -> None:
        """Take over nothing any more, not even what is being read just now."""
        self._stopped = True
        self._requested.set()

    async def reload(self, reason: str) -> ReloadResult:
        """Read the file and take it over, if that can be. ``reason``: who wants it, for the log.

        One is made at a time; all who ask during one get the result of the next, which began after they asked.
        """
        begun = self._begun
        async with self._turn:
            if self._ended <= begun and not self._stopped:
                self._begun += 1
                number = self._begun
                self._last = await self._reload(reason)
                self._ended = number
            return ReloadResult("draining") if self._stopped else self._last

    async def _has_changed(self) -> bool:
        try:
            return await self._aside.call(self._file.changed, READ_TIMEOUT)
        except TimeoutError:  # its file system does not answer; that is told by a reload
            return False

    async def _reload(self, reason: str) -> ReloadResult:
        try:
            wanted, digest, found = await self._aside.call(self._read, READ_TIMEOUT)
        except ConfigError as error:
            return self._reject(reason, error.problems)
        except TimeoutError:
            return self._reject(reason, [f"cannot be read: no answer within {READ_TIMEOUT:.0f} s"])
        except Exception as error:
            log.exception("config_not_read", reason=reason)
            return self._reject(reason, [f"cannot be read: {type(error).__name__}, see the log"])
        if self._stopped:
            return ReloadResult("draining")
        if errors := [str(difference) for difference in found if not reloadable(difference.path)]:
            return self._reject(reason, errors)
        self.state.loaded_at = self._now()
        self.state.last_errors = []
        if not found:
            self.state.results["unchanged"] += 1
            log.info("config_unchanged", reason=reason)
            return ReloadResult("unchanged")
        changed = tuple(show(difference.path) for difference in found)
        self.config, self.state.hash = wanted, digest
        self._apply(wanted)
        self.state.results["applied"] += 1
        log.info("config_reloaded", reason=reason, keys=changed, hash=digest)
        return ReloadResult("applied", changed=changed)

    def _read(self) -> tuple[Config, str, list[Difference]]:
        """Return what the file holds, its hash, and what is different in it."""
        self._file.note()
        pauses = Pauses()
        wanted = self._load(self._file.path, pauses)
        with no_collection():
            return wanted, fingerprint(wanted, pauses), differences(self.config, wanted, pauses)

    def _reject(self, reason: str, errors: list[str]) -> ReloadResult:
        self.state.results["rejected"] += 1
        self.state.last_errors = errors
        log.error("config_rejected", reason=reason, file=str(self._file.path), errors=errors)
        return ReloadResult("rejected", errors=tuple(errors))


class FileWatch:
    """Tells when a file has become another one, whether written, replaced, or reached by another link.

    Asks the file system, which may take its time: not for the loop's thread.
    """

    def __init__(self, path: Path) -> None:
        """Takes the file as it is now for known."""
        self.path = path
        self._vanished = False
        self.note()

    def note(self) -> None:
        """Take the file as it is now for known."""
        self._known = self._seen = self._look()

    def changed(self) -> bool:
        """Return whether it is not the known one, and the same as at the call before. Vanished, it has not changed."""
        before, self._seen = self._seen, self._look()
        if self._seen is None and not self._vanished:
            log.warning("config_vanished", file=str(self.path))
        self._vanished = self._seen is None
        return self._seen is not None and self._seen == before != self._known

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
