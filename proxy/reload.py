"""Reloads the configuration of a running sidecar: the whole file or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Literal

import structlog
from msgspec import Struct, field

from proxy.config import Config, load
from proxy.config.difference import Change, Difference, differences, fingerprint
from proxy.config.document import garbage_collection_paused
from proxy.config.keys import format_path, reloadable
from proxy.config.regular_files import file_state
from proxy.config.tls_files import certificate_problems, states_of_files
from proxy.config.values import FileState
from proxy.daemon_executor import DaemonExecutor
from proxy.errors import ConfigError, LocalError

FILE_POLL_INTERVAL = 0.5
"""Seconds between two checks of the file. A change is applied once two checks found the same state, so that no
half-written file is read."""

READ_TIMEOUT = 10.0
"""Seconds that reading the file may take on a slow file system. After that the reload is rejected."""

MAX_LOGGED_CHANGES = 20
"""Changes whose values are in the log line of a reload. Thousands of addresses may change at once."""

WORK_SLICE, PAUSE_SLICE = 0.0005, 0.0005
"""Seconds of work, and seconds of sleep that leave the interpreter to the traffic. A file with 3,000 addresses takes
0.1 s of work."""

REPEAT_INTERVAL = 1.0
"""Seconds until the same result of a reload is logged again, but for one that changes something."""

ReloadOutcome = Literal["applied", "unchanged", "rejected", "draining"]

log = structlog.get_logger(__name__)


class ReloadResult(Struct, frozen=True):
    """The result of one reload. ``draining``: the sidecar is shutting down and reloads nothing."""

    result: ReloadOutcome
    changed: tuple[str, ...] = ()
    """The keys with a new value, if the reload was applied."""
    changes: tuple[Change, ...] = ()
    """The same with the values before and after; secrets are not shown."""
    errors: tuple[str, ...] = ()
    """Why the reload was rejected, one line each."""


class AppliedChange(Struct, frozen=True):
    """A reload that changed the running configuration. ``at``: seconds since 1970. ``reason``: who requested it."""

    changed: tuple[str, ...]
    at: float
    reason: str


class ReloadState(Struct):
    """The running configuration and the results of all reloads."""

    hash: str
    """Changes with the running configuration; the same in every process."""
    loaded_at: float
    """When the file was last loaded without errors, in seconds since 1970."""
    results: dict[str, int] = field(default_factory=lambda: {"applied": 0, "unchanged": 0, "rejected": 0})
    """Number of reloads by result."""
    last_errors: list[str] = field(default_factory=list)
    """Errors of the last reload; empty if it was not rejected."""
    last_applied: AppliedChange | None = None
    """The last change of the configuration since the start."""

    @property
    def last_successful(self) -> bool:
        """Whether the last reload was not rejected; True before the first one."""
        return not self.last_errors


class PeriodicPause:
    """Called repeatedly by a working thread: sleeps for ``PAUSE_SLICE`` after each ``WORK_SLICE`` seconds."""

    def __init__(self) -> None:
        self._until = time.monotonic() + WORK_SLICE

    def __call__(self) -> None:
        """Sleep if the work slice is over."""
        if time.monotonic() >= self._until:
            time.sleep(PAUSE_SLICE)
            self._until = time.monotonic() + WORK_SLICE


class Reloader:
    """Reloads the configuration. Belongs to the event loop's thread and reads files in another one.

    ``apply`` is called on the event loop with each new configuration. It differs from the one before only in reloadable
    keys. ``apply`` applies all of it and returns True, or raises LocalError and applies nothing, or returns False and
    applies nothing since the sidecar shuts down.
    ``on_start()`` and ``on_end(result)`` are called around each reload.
    """

    def __init__(
        self,
        file: ConfigFileMonitor,
        config: Config,
        apply: Callable[[Config], Awaitable[bool]],
        *,
        load: Callable[[str | os.PathLike[str], Callable[[], None]], Config] = lambda path, pause: load(
            path, pause=pause
        ),
        now: Callable[[], float] = time.time,
        on_start: Callable[[], None] = lambda: None,
        on_end: Callable[[ReloadResult], None] = lambda result: None,
    ) -> None:
        """``config``: loaded from ``file`` after the monitor was created."""
        file.watch(states_of_files(config))
        self.config = config
        self.state = ReloadState(hash=fingerprint(config), loaded_at=now())
        self._apply = apply
        self._load = load
        self._now = now
        self._on_start, self._on_end = on_start, on_end
        self._file = file
        self._stopped = False
        self._requested = asyncio.Event()
        self._reason = ""
        self._lock = asyncio.Lock()
        self._executor = DaemonExecutor("configuration")
        self._last_news: tuple[tuple[str, ...], float] = (), 0.0
        self._unread = False
        self._started_count = 0
        self._finished_count = 0
        self._last_result = ReloadResult("unchanged")

    def request_reload(self, reason: str) -> None:
        """Let ``run`` reload soon. Requests until then are merged. Can be used as a signal handler."""
        self._reason = reason
        self._requested.set()

    async def run(self) -> None:
        """Reload when requested or when the file has changed, until ``stop``."""
        while not self._stopped:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FILE_POLL_INTERVAL):
                    await self._requested.wait()
            if self._requested.is_set():
                self._requested.clear()
                await self.reload(self._reason)
            elif await self._has_changed():
                await self.reload("file")

    def stop(self) -> None:
        """Apply nothing any more, not even a file that is being read."""
        self._stopped = True
        self._requested.set()

    async def reload(self, reason: str) -> ReloadResult:
        """Load the file and apply it if possible. ``reason``: who requested it, for the log.

        Reloads run one after the other. All callers during one get the result of the next one, which began after their
        call.
        """
        started_count = self._started_count
        async with self._lock:
            if self._finished_count <= started_count and not self._stopped:
                self._started_count += 1
                number = self._started_count
                self._on_start()
                self._last_result = await self._reload(reason)
                self._on_end(self._last_result)
                self._finished_count = number
            return ReloadResult("draining") if self._stopped else self._last_result

    async def _has_changed(self) -> bool:
        """Return whether there is a configuration to load, or one whose last read took too long."""
        try:
            return await self._executor.run(self._file.has_changed, READ_TIMEOUT) or self._unread
        except TimeoutError:  # a blocked file system; a reload reports it
            return False

    async def _reload(self, reason: str) -> ReloadResult:
        self._unread = False
        try:
            wanted, digest, found, errors = await self._executor.run(self._read, READ_TIMEOUT)
        except ConfigError as error:
            return self._reject(reason, error.problems)
        except TimeoutError:
            self._unread = True
            return self._reject(reason, [f"cannot be read: no answer within {READ_TIMEOUT:.0f} s"])
        except Exception as error:
            log.exception("config_not_read", reason=reason)
            return self._reject(reason, [f"cannot be read: {type(error).__name__}, see the log"])
        if self._stopped:
            return ReloadResult("draining")
        if errors:
            return self._reject(reason, errors)
        if not found:
            self.state.loaded_at = self._now()
            self.state.last_errors = []
            self.state.results["unchanged"] += 1
            if self._is_news("config_unchanged"):
                log.info("config_unchanged", reason=reason)
            return ReloadResult("unchanged")
        try:
            if not await self._apply(wanted):
                return ReloadResult("draining")
        except LocalError as error:
            return self._reject(reason, [str(error)])
        self._last_news = (), 0.0
        self.config, self.state.hash = wanted, digest
        self.state.loaded_at = self._now()
        self.state.last_errors = []
        changes = tuple(difference.change for difference in found)
        changed = tuple(change.key for change in changes)
        self.state.results["applied"] += 1
        self.state.last_applied = AppliedChange(changed, self.state.loaded_at, reason)
        shown = [f"{key}: {old} -> {new}" for key, old, new in changes[:MAX_LOGGED_CHANGES]]
        log.info("config_reloaded", reason=reason, keys=changed, changes=shown, hash=digest)
        return ReloadResult("applied", changed=changed, changes=changes)

    def _read(self) -> tuple[Config, str, list[Difference], list[str]]:
        """Return the loaded configuration, its hash, its differences from the running one, and why these cannot be
        applied."""
        self._file.mark_loaded()
        pause = PeriodicPause()
        wanted = self._load(self._file.path, pause)
        self._file.watch(states_of_files(wanted))
        with garbage_collection_paused():
            found = differences(self.config, wanted, pause)
            invalid = certificate_problems(wanted, self._now())
            errors = [str(one) for one in found if not reloadable(one.path)]
            changed = [one.path for one in found]  # a new listener is one path
            errors += [
                f"{format_path(path)}: {why}"
                for path, why in invalid.items()
                if any(path[: len(above)] == above for above in changed)
            ]
            return wanted, fingerprint(wanted, pause), found, errors

    def _reject(self, reason: str, errors: list[str]) -> ReloadResult:
        self.state.results["rejected"] += 1
        self.state.last_errors = errors
        if self._is_news("config_rejected", *errors):
            log.error("config_rejected", reason=reason, file=str(self._file.path), errors=errors)
        return ReloadResult("rejected", errors=tuple(errors))

    def _is_news(self, *line: str) -> bool:
        """Whether to log ``line``: not again within a second, so that who asks for reloads cannot fill the log."""
        (last, at), now = self._last_news, self._now()
        if line == last and at <= now < at + REPEAT_INTERVAL:
            return False
        self._last_news = line, now
        return True


class ConfigFileMonitor:
    """Detects changes of a configuration's files, whether they are written, replaced, or reached by another link.

    It calls the file system, which may block, so it is not for the event loop's thread.
    """

    def __init__(self, path: Path) -> None:
        """``path``: of the configuration. Takes its current state as loaded."""
        self.path = path
        self._vanished: list[str] = []
        self._loaded: dict[Path, FileState] = {path: None}
        self.mark_loaded()

    def mark_loaded(self) -> None:
        """Take the current state of all files as loaded."""
        self._loaded = self._last = self._read_states()

    def watch(self, others: Mapping[Path, FileState]) -> None:
        """Watch the files, beside the configuration itself, that it names. They were loaded in these states."""
        self._loaded = {**others, self.path: self._loaded[self.path]}
        self._last = dict(self._loaded)

    def has_changed(self) -> bool:
        """Return whether a file differs from the loaded one, and all are the same as at the last call. False if one is
        missing."""
        before, self._last = self._last, self._read_states()
        missing = [str(path) for path, state in self._last.items() if state is None]
        if missing and missing != self._vanished:
            log.warning("config_vanished", file=", ".join(missing))
        self._vanished = missing
        return not missing and self._last == before != self._loaded

    def _read_states(self) -> dict[Path, FileState]:
        return {path: file_state(path) for path in self._loaded}
