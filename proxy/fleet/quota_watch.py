"""Keeps an eye on what the cluster has stored about connections, and keeps it from throttling the sidecar itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping

import msgspec
import structlog
from msgspec import Struct

from proxy.config import Config
from proxy.config.limits import limits_of
from proxy.errors import BrokersideError
from proxy.fleet import broker_limits, messages
from proxy.fleet.broker_limits import Tight
from proxy.fleet.client import Asking, Client
from proxy.fleet.names import Names
from proxy.fleet.protection import exposure, for_clients, sources_of
from proxy.fleet.schedule import Schedule
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED, ClusterQuotas, canonical

SLICE = 64
"""Quotas read before the loop gets its turn: less than a millisecond. In a thread, 100,000 of them would make the loop
wait for the interpreter's lock, 5 ms at a time."""

log = structlog.get_logger(__name__)


class QuotaWatchState(Struct):
    """How it goes, for metrics and people."""

    ok: bool = False
    """Whether the last look was answered; what was known before stays in force where it was not."""
    error: str | None = None
    """Why it was not answered."""
    problem: str | None = None
    """What limits the sidecar itself and cannot be mended."""
    last_ok_at: float = float("nan")
    """The loop's time of the last look that was answered; NaN where none was."""
    polls: int = 0
    """Looks, answered or not."""
    quotas: int = 0
    """Rates of addresses that are stored."""


class QuotaWatch:
    """One task. ``start`` it, ``poke`` it where something may have changed, ``close`` it."""

    def __init__(
        self,
        config: Config,
        on_change: Callable[[ClusterQuotas], None],
        on_problem: Callable[[str | None], None],
        *,
        asking: Asking | None = None,
    ) -> None:
        """``config`` has ``internal.bootstrap.servers``. Both calls come on the loop, and only with something new.

        ``on_problem`` is what keeps the sidecar from being ready; None where nothing does any more.
        """
        self.state = QuotaWatchState()
        self._config = config
        self._on_change = on_change
        self._on_problem = on_problem
        self._asking: Asking = asking or Client(config, f"brokerside-quotas-{config.broker_id}")
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._answered = asyncio.Event()
        self._names = Names()
        self._answer = b""
        self._rates: dict[str, int] = {}
        self._named: dict[str, int] = {}
        self._configs: dict[str, str] = {}
        self._found = ClusterQuotas()
        self._tight: list[Tight] = []
        self._been_fine = False
        self._protected_once = False

    def start(self) -> None:
        """Begin to look, on the running loop."""
        self._schedule = Schedule(asyncio.get_running_loop().time())
        self._task = asyncio.create_task(self._run())

    async def known(self) -> None:
        """Wait until the cluster has answered once."""
        await self._answered.wait()

    def poke(self) -> None:
        """Look now, and some more times soon: quotas may just have been changed."""
        if self._task is not None:
            self._schedule.poke(asyncio.get_running_loop().time())
            self._woken.set()

    def change(self, config: Config) -> None:
        """Go on with another configuration; how the cluster is reached stays."""
        self._config = config
        self.poke()

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._asking.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait = self._schedule.at() - loop.time()
            if wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._woken.wait()
                self._woken.clear()
                continue
            began = loop.time()
            error = await self._tried()
            self._report(error)
            (self._schedule.looked if error is None else self._schedule.failed)(began, loop.time())

    async def _tried(self) -> str | None:
        """Look once; return what went wrong."""
        try:
            await self._look()
        except BrokersideError as error:
            return str(error)
        except Exception:
            # A mistake of ours must not end the watch, and with it what the operator sets.
            log.exception("quota_watch_failed")
            return "a mistake in the sidecar, see its log"
        finally:
            if not self._asking.at_home:
                self._asking.close()  # the own broker may be back by the next look
        return None

    async def _look(self) -> None:
        stored = await self._stored()
        if self._asking.at_home:
            names = [listener.name for listener in self._config.listeners]
            asked = messages.describe_broker(self._config.broker_id, broker_limits.keys(names))
            self._configs = messages.broker_configs(await self._asking.ask(asked))
        try:
            sources = await sources_of(self._config.listeners)
        except OSError as error:
            raise BrokersideError(
                f"the address this sidecar dials from is not known: {error.strerror or 'no answer'}"
            ) from None
        quotas = self._config.quotas
        self._take(for_clients(stored, sources) if quotas.protect_upstream else stored)
        self._compare(sources)
        self._tell(await self._protected(stored, sources) if quotas.protect_upstream else None)

    async def _stored(self) -> dict[str, int]:
        """Rates by address, ``DEFAULT_ADDRESS`` included, as the cluster has them now."""
        answer = await self._asking.ask(messages.describe_ip_quotas())
        if answer != self._answer:
            rates, named = {}, {}
            for number, (name, value) in enumerate(messages.ip_quotas(answer), 1):
                if number % SLICE == 0:
                    await asyncio.sleep(0)
                rate = _rate(value)
                if rate is None:
                    continue
                try:
                    rates[DEFAULT_ADDRESS if name is None else canonical(name)] = rate
                except ValueError:
                    named[name or ""] = rate
            self._rates, self._named, self._answer = rates, named, answer
        addresses = await self._names.resolve(self._named)
        self.state.quotas = len(self._rates) + len(self._named)
        if not addresses:
            return self._rates
        rates = dict(self._rates)
        for name, address in addresses.items():
            # Brokers go by whichever of two for one address they heard of last; the lower is the one to reckon with.
            rates[address] = min(self._named[name], rates.get(address, UNLIMITED))
        return rates

    def _take(self, rates: Mapping[str, int]) -> None:
        quotas = self._config.quotas
        rate, listener_rates = broker_limits.rates(self._configs, [one.name for one in self._config.listeners])
        found = ClusterQuotas(
            rates if quotas.ip_store == "broker" else {},
            rate if quotas.source != "file" else None,
            listener_rates if quotas.source != "file" else {},
        )
        if found != self._found:
            log.info("cluster_quotas", addresses=len(found.ip_rates), rate=found.rate, listeners=found.listener_rates)
            self._on_change(found)
            self._found = found

    async def _protected(self, stored: dict[str, int], sources: Collection[str]) -> str | None:
        """Store the overrides that are missing; return what limits the sidecar all the same."""
        found = exposure(stored, sources)
        failure = None
        if found.missing and (found.by_default or not self._protected_once):
            self._protected_once = True
            try:
                messages.check_altered(await self._asking.ask(messages.set_ip_rates(found.missing, UNLIMITED)))
            except BrokersideError as error:
                failure = str(error)
                if not found.by_default:
                    log.warning("upstream_not_protected", addresses=found.missing, error=failure)
            else:
                log.info("upstream_protected", addresses=found.missing)
                self.poke()
        return found.problem(failure)

    def _compare(self, sources: Collection[str]) -> None:
        without_addresses = msgspec.structs.replace(self._found, ip_rates={})
        tight = broker_limits.tight(self._configs, sources, limits_of(self._config, without_addresses))
        for one in tight:
            if one not in self._tight:
                log.warning("broker_limits_sidecar", key=one.key, value=one.value, advice=one.advice)
        self._tight = tight

    def _tell(self, problem: str | None) -> None:
        if problem != self.state.problem:
            self.state.problem = problem
            if problem is None:
                log.info("upstream_not_limited")
            else:
                log.warning("upstream_limited", problem=problem)
            if not self._been_fine:
                self._on_problem(problem)
        self._been_fine = self._been_fine or problem is None

    def _report(self, error: str | None) -> None:
        state = self.state
        state.polls += 1
        if error is None:
            self._answered.set()
            state.last_ok_at = asyncio.get_running_loop().time()
            if state.error is not None:
                log.info("quota_source_back")
        elif error != state.error:
            log.warning("quota_source_unreachable", error=error)
        state.ok, state.error = error is None, error


def _rate(value: float) -> int | None:
    """A stored quota as connections per second; None for what Kafka would not have let in."""
    return int(min(value, UNLIMITED)) if value >= 1 else None
