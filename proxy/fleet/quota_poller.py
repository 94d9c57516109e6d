"""Polls the cluster's quotas of connections, and exempts the sidecar itself from them."""

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
from proxy.fleet.broker_limits import TighterLimit
from proxy.fleet.client import Caller, ClusterClient
from proxy.fleet.host_resolver import HostResolver
from proxy.fleet.local_addresses import LocalAddresses
from proxy.fleet.schedule import Schedule
from proxy.fleet.self_exemption import find_exposure, without_exemptions
from proxy.limits.java_addresses import parse_java_address
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED, ClusterQuotas
from proxy.rpc import messages
from proxy.rpc.messages import NOT_AUTHORIZED, RequestRefused

UNAUTHORIZED_RETRY = 60.0
"""Seconds until an exemption that is not needed yet is stored again, after the cluster has denied the permission."""

QUOTAS_PER_SLICE = 64
"""Quotas that are decoded in one turn of the loop, in less than a millisecond. A thread would make the loop wait for
the interpreter's lock, 5 ms at a time."""

log = structlog.get_logger(__name__)


class QuotaPollerState(Struct):
    """The state of a QuotaPoller, for metrics and people."""

    ok: bool = False
    """Whether the last poll succeeded. After a failure the quotas of the last successful poll stay in force."""
    error: str | None = None
    """Why the last poll failed."""
    problem: str | None = None
    """What limits the sidecar itself, or which limit of the broker is not known; None if nothing is wrong."""
    last_ok_at: float = float("nan")
    """The loop's time of the last successful poll; NaN before the first."""


class QuotaPoller:
    """Polls in one task, from ``start`` to ``close``. Call ``refresh`` when quotas may have changed."""

    def __init__(
        self,
        config: Config,
        on_change: Callable[[ClusterQuotas], None],
        on_problem: Callable[[str | None], None],
        *,
        caller: Caller | None = None,
    ) -> None:
        """``config`` has ``internal.bootstrap.servers``. Both callbacks are called on the loop, with each change.

        ``on_problem`` gets what keeps the sidecar from being ready, and None when that has ended.
        """
        self.state = QuotaPollerState()
        self._config = config
        self._on_change = on_change
        self._on_problem = on_problem
        self._caller: Caller = caller or ClusterClient(config, f"brokerside-quotas-{config.broker_id}")
        self._task: asyncio.Task[None] | None = None
        self._refreshed = asyncio.Event()
        self._answered = asyncio.Event()
        self._resolver = HostResolver()
        self._local_addresses = LocalAddresses()
        self._answer = b""
        self._rates: dict[str, int] = {}
        self._named: dict[str, int] = {}
        self._configs: dict[str, str] = {}
        self._found = ClusterQuotas()
        self._tighter_limits: list[TighterLimit] = []
        self._limited: str | None = None
        self._unknown_rate: str | None = None
        self._was_ready = False
        self._exempted: set[str] = set()  # addresses for which a quota was once stored
        self._exempt_at = 0.0
        self._exempt_failure: str | None = None

    def start(self) -> None:
        """Start to poll, on the running loop."""
        if self._config.quotas_unread is not None:
            log.warning("quotas_not_read", reason=self._config.quotas_unread)
            self._give_up(self._config.quotas_unread)
            return
        self._schedule = Schedule(asyncio.get_running_loop().time())
        self._task = asyncio.create_task(self._run())

    async def wait_for_first_answer(self) -> None:
        """Wait until a poll has succeeded, or it is known that the cluster's quotas cannot be read."""
        await self._answered.wait()

    def mark_accepting(self) -> None:
        """Note that the sidecar accepts connections. A problem that is found from now on does not make it unready."""
        self._was_ready = self._was_ready or self._limited is None

    def refresh(self) -> None:
        """Poll now, and some more times soon: quotas may just have been changed."""
        if self._task is not None:
            self._schedule.refresh(asyncio.get_running_loop().time())
            self._refreshed.set()

    def reconfigure(self, config: Config) -> None:
        """Take over a changed configuration. The connection to the cluster stays as it is."""
        self._config = config
        if config.quotas_unread is not None:
            self._give_up(config.quotas_unread)
        self.refresh()

    async def close(self) -> None:
        """Stop to poll, and close the connection."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._resolver.close()
        self._caller.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait = self._schedule.next_at() - loop.time()
            if wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._refreshed.wait()
                self._refreshed.clear()
                continue
            began = loop.time()
            error = await self._attempt()
            self._report(error)
            (self._schedule.succeeded if error is None else self._schedule.failed)(began, loop.time())

    async def _attempt(self) -> str | None:
        """Poll once; return why that failed, None if it succeeded."""
        try:
            await self._poll()
        except BrokersideError as error:
            return str(error)
        except Exception:
            # A mistake of ours must not end the task, and with it the operator's quotas.
            log.exception("quota_poller_failed")
            return "a mistake in the sidecar, see its log"
        finally:
            if self._caller.away_reason is not None:
                self._caller.close()  # the own broker may be back by the next poll
        return None

    async def _poll(self) -> None:
        stored = await self._read_rates()
        if self._caller.away_reason is None:
            names = [listener.name for listener in self._config.listeners]
            asked = messages.describe_broker_request(self._config.broker_id, broker_limits.config_keys(names))
            self._configs = messages.decode_broker_configs(await self._caller.call(asked))
        sources = await self._local_addresses.resolve(self._config.listeners)
        quotas = self._config.quotas
        self._apply_quotas(without_exemptions(stored, sources) if quotas.protect_upstream else stored)
        self._check_broker_limits(sources)
        self._report_problems(await self._exempt_self(stored, sources) if quotas.protect_upstream else None)

    async def _read_rates(self) -> dict[str, int]:
        """Return the cluster's rates by address, ``DEFAULT_ADDRESS`` included."""
        answer = await self._caller.call(messages.describe_ip_quotas_request())
        if answer != self._answer:
            rates: dict[str, int] = {}
            named: dict[str, int] = {}
            for number, quota in enumerate(messages.decode_ip_quotas(answer), 1):
                if number % QUOTAS_PER_SLICE == 0:
                    await asyncio.sleep(0)
                rate = None if quota is None else _rate(quota[1])
                if quota is None or rate is None:
                    continue
                name = quota[0]
                address = DEFAULT_ADDRESS if name is None else parse_java_address(name)
                if address is not None:
                    rates[address] = min(rate, rates.get(address, UNLIMITED))
                elif name is not None:
                    named[name] = rate
            self._rates, self._named, self._answer = rates, named, answer
        addresses = await self._resolver.resolve(self._named)
        if not addresses:
            return self._rates
        rates = dict(self._rates)
        for name, address in addresses.items():
            # Of two quotas for one address a broker applies the one it has loaded last. The lower one is assumed.
            rates[address] = min(self._named[name], rates.get(address, UNLIMITED))
        return rates

    def _apply_quotas(self, rates: Mapping[str, int]) -> None:
        quotas = self._config.quotas
        rate, listener_rates = broker_limits.parse_rates(self._configs, [one.name for one in self._config.listeners])
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

    async def _exempt_self(self, stored: dict[str, int], sources: Collection[str]) -> str | None:
        """Store the quotas that exempt the sidecar; return what limits the sidecar nevertheless."""
        found = find_exposure(stored, sources)
        self._exempted.update(source for source in sources if source in stored)
        wanted = found.missing if found.by_default else [one for one in found.missing if one not in self._exempted]
        now, failure = asyncio.get_running_loop().time(), None
        if wanted and (found.by_default or now >= self._exempt_at):
            try:
                messages.check_quotas_altered(await self._caller.call(messages.set_ip_rates_request(wanted, UNLIMITED)))
            except BrokersideError as error:
                failure = str(error)
                if not found.by_default and failure != self._exempt_failure:
                    log.warning("upstream_not_protected", addresses=wanted, error=failure)
                if isinstance(error, RequestRefused) and error.code == NOT_AUTHORIZED:
                    self._exempt_at = now + UNAUTHORIZED_RETRY
            else:
                log.info("upstream_protected", addresses=wanted)
                self._exempted.update(wanted)
                self.refresh()
            self._exempt_failure = failure
        return found.problem(failure)

    def _check_broker_limits(self, sources: Collection[str]) -> None:
        without_addresses = msgspec.structs.replace(self._found, ip_rates={})
        tighter = broker_limits.find_tighter(self._configs, sources, limits_of(self._config, without_addresses))
        for one in tighter:
            if one not in self._tighter_limits:
                log.warning("broker_limits_sidecar", key=one.key, value=one.value, advice=one.advice)
        self._tighter_limits = tighter

    def _report_problems(self, limited: str | None) -> None:
        """Report changes of ``limited``, which limits the sidecar itself, and whether the broker's rate is known."""
        if limited != self._limited:
            self._limited = limited
            if limited is None:
                log.info("upstream_not_limited")
            else:
                log.warning("upstream_limited", problem=limited)
            if not self._was_ready:
                self._on_problem(limited)
        self._was_ready = self._was_ready or limited is None
        unknown_rate = None
        if self._config.quotas.source != "file" and self._caller.away_reason is not None:
            unknown_rate = f"the broker's own {broker_limits.RATE} is not known: {self._caller.away_reason}"
        if unknown_rate != self._unknown_rate:
            self._unknown_rate = unknown_rate
            if unknown_rate is None:
                log.info("broker_limits_known")
            else:
                log.warning("broker_limits_unknown", problem=unknown_rate)
        self.state.problem = "; ".join(filter(None, (limited, unknown_rate))) or None

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
    """Return a stored quota in connections per second; None for a value that Kafka does not accept."""
    return int(min(value, UNLIMITED)) if value >= 1 else None
