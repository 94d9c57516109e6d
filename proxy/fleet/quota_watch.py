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
from proxy.fleet import broker_limits
from proxy.fleet.broker_limits import Tight
from proxy.fleet.client import Asking, Client
from proxy.fleet.names import Names, literal
from proxy.fleet.protection import exposure, for_clients
from proxy.fleet.schedule import Schedule
from proxy.fleet.sources import Sources
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED, ClusterQuotas
from proxy.rpc import messages
from proxy.rpc.messages import NOT_AUTHORIZED, Refused

FORBIDDEN_RETRY = 60.0
"""Seconds until the sidecar tries again to store what it has no right to and does not need yet."""

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
    """What limits the sidecar itself, or what it has to limit by and is not told; None where nothing is wrong."""
    last_ok_at: float = float("nan")
    """The loop's time of the last look that was answered; NaN where none was."""


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
        self._sources = Sources()
        self._answer = b""
        self._rates: dict[str, int] = {}
        self._named: dict[str, int] = {}
        self._configs: dict[str, str] = {}
        self._found = ClusterQuotas()
        self._tight: list[Tight] = []
        self._limited: str | None = None
        self._unasked: str | None = None
        self._been_fine = False
        self._settled: set[str] = set()  # addresses that an override was once stored for
        self._protect_at = 0.0
        self._protect_failure: str | None = None

    def start(self) -> None:
        """Begin to look, on the running loop."""
        if self._config.quotas_unread is not None:
            log.warning("quotas_not_read", reason=self._config.quotas_unread)
            self._give_up(self._config.quotas_unread)
            return
        self._schedule = Schedule(asyncio.get_running_loop().time())
        self._task = asyncio.create_task(self._run())

    async def known(self) -> None:
        """Wait until the cluster has answered once, or is known not to be asked."""
        await self._answered.wait()

    def accepting(self) -> None:
        """Tell that the sidecar has begun to accept: a problem that is first found now is only told of."""
        self._been_fine = self._been_fine or self._limited is None

    def poke(self) -> None:
        """Look now, and some more times soon: quotas may just have been changed."""
        if self._task is not None:
            self._schedule.poke(asyncio.get_running_loop().time())
            self._woken.set()

    def change(self, config: Config) -> None:
        """Go on with another configuration; how the cluster is reached stays."""
        self._config = config
        if config.quotas_unread is not None:
            self._give_up(config.quotas_unread)
        self.poke()

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._names.close()
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
            if self._asking.away is not None:
                self._asking.close()  # the own broker may be back by the next look
        return None

    async def _look(self) -> None:
        stored = await self._stored()
        if self._asking.away is None:
            names = [listener.name for listener in self._config.listeners]
            asked = messages.describe_broker(self._config.broker_id, broker_limits.keys(names))
            self._configs = messages.broker_configs(await self._asking.ask(asked))
        sources = await self._sources.of(self._config.listeners)
        quotas = self._config.quotas
        self._take(for_clients(stored, sources) if quotas.protect_upstream else stored)
        self._compare(sources)
        self._tell(await self._protected(stored, sources) if quotas.protect_upstream else None)

    async def _stored(self) -> dict[str, int]:
        """Rates by address, ``DEFAULT_ADDRESS`` included, as the cluster has them now."""
        answer = await self._asking.ask(messages.describe_ip_quotas())
        if answer != self._answer:
            rates: dict[str, int] = {}
            named: dict[str, int] = {}
            for number, quota in enumerate(messages.ip_quotas(answer), 1):
                if number % SLICE == 0:
                    await asyncio.sleep(0)
                rate = None if quota is None else _rate(quota[1])
                if quota is None or rate is None:
                    continue
                name = quota[0]
                address = DEFAULT_ADDRESS if name is None else literal(name)
                if address is not None:
                    rates[address] = min(rate, rates.get(address, UNLIMITED))
                elif name is not None:
                    named[name] = rate
            self._rates, self._named, self._answer = rates, named, answer
        addresses = await self._names.resolve(self._named)
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
            default = found.ip_rates.get(DEFAULT_ADDRESS)
            log.info(
                "cluster_quotas",
                addresses=len(found.ip_rates) - (default is not None),
                default=default,
                rate=found.rate,
                listeners=found.listener_rates,
            )
            self._on_change(found)
            self._found = found

    async def _protected(self, stored: dict[str, int], sources: Collection[str]) -> str | None:
        """Store the overrides that are missing; return what limits the sidecar all the same."""
        found = exposure(stored, sources)
        self._settled.update(source for source in sources if source in stored)
        wanted = found.missing if found.by_default else [one for one in found.missing if one not in self._settled]
        now, failure = asyncio.get_running_loop().time(), None
        if wanted and (found.by_default or now >= self._protect_at):
            try:
                messages.check_altered(await self._asking.ask(messages.set_ip_rates(wanted, UNLIMITED)))
            except BrokersideError as error:
                failure = str(error)
                if not found.by_default and failure != self._protect_failure:
                    log.warning("upstream_not_protected", addresses=wanted, error=failure)
                if isinstance(error, Refused) and error.code == NOT_AUTHORIZED:
                    self._protect_at = now + FORBIDDEN_RETRY
            else:
                log.info("upstream_protected", addresses=wanted)
                self._settled.update(wanted)
                self.poke()
            self._protect_failure = failure
        return found.problem(failure)

    def _compare(self, sources: Collection[str]) -> None:
        without_addresses = msgspec.structs.replace(self._found, ip_rates={})
        tight = broker_limits.tight(self._configs, sources, limits_of(self._config, without_addresses))
        for one in tight:
            if one not in self._tight:
                log.warning("broker_limits_sidecar", key=one.key, value=one.value, advice=one.advice)
        self._tight = tight

    def _tell(self, limited: str | None) -> None:
        """Say what is new of ``limited``, which limits the sidecar itself, and of what the own broker does not tell."""
        if limited != self._limited:
            self._limited = limited
            if limited is None:
                log.info("upstream_not_limited")
            else:
                log.warning("upstream_limited", problem=limited)
            if not self._been_fine:
                self._on_problem(limited)
        self._been_fine = self._been_fine or limited is None
        unasked = None
        if self._config.quotas.source != "file" and self._asking.away is not None:
            unasked = f"the broker's own {broker_limits.RATE} is not known: {self._asking.away}"
        if unasked != self._unasked:
            self._unasked = unasked
            if unasked is None:
                log.info("broker_limits_known")
            else:
                log.warning("broker_limits_unknown", problem=unasked)
        self.state.problem = "; ".join(filter(None, (limited, unasked))) or None

    def _give_up(self, reason: str) -> None:
        exposed = f"the cluster's quotas of addresses may limit this sidecar: {reason}"
        self.state.problem = exposed if self._config.quotas.protect_upstream else None
        self.state.error = reason
        self._answered.set()

    def _report(self, error: str | None) -> None:
        state = self.state
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
