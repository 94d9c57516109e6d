"""A quotas on a clock of its own: clients that connect by a schedule, a kernel's backlog, and what became of each."""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.model import Limits, ListenerLimits, Quota, QuotasState, Throttle
from proxy.limits.principal_quotas import PrincipalQuotas
from proxy.limits.quotas_state import collect_state

A = "10.0.0.1"
B = "10.0.0.2"


def ignored(number: int) -> None:
    """What becomes of a principal's connection, where nobody wants to know."""


@dataclass
class Client:
    at: int
    listener: str = "CLIENT"
    address: str = A
    accepted: int | None = None
    admitted: int | None = None
    refused: int | None = None
    patience: float = math.inf
    """Milliseconds from ``at`` until it gives up, unless it has been admitted."""


@dataclass
class Simulation:
    """``run`` goes from one instant at which something happens to the next; ``do`` schedules anything else."""

    limits: Limits
    now: int = 0
    clients: list[Client] = field(default_factory=list)
    throttles: list[Throttle] = field(default_factory=list)
    evictions: list[Collection[str]] = field(default_factory=list)
    on_evict: Callable[[Collection[str]], None] = lambda listeners: None

    def __post_init__(self) -> None:
        self.quotas: ConnectionQuotas = ConnectionQuotas(
            self.limits,
            admit=self._admit,
            refuse=self._refuse,
            is_disconnected=self._is_gone,
            evict=self._evict,
            on_throttle=self.throttles.append,
        )
        self.principals = PrincipalQuotas(
            self.limits, hold=ignored, resume=ignored, close=ignored, on_throttle=self.throttles.append
        )
        self.backlog: dict[str, deque[Client]] = {name: deque() for name in self.limits.listeners}
        self._coming: deque[Client] = deque()

    def connect(self, times: Iterable[int], listener: str = "CLIENT", address: str = A) -> list[Client]:
        new = [Client(at, listener, address) for at in times]
        self._coming = deque(sorted([*self._coming, *new], key=lambda client: client.at))
        self.clients += new
        return new

    def run(self, until: int = 10**9) -> None:
        while True:
            self._accept()
            times = [self._coming[0].at] if self._coming else []
            due = self.quotas.next_timer()
            times += [] if due is None else [max(due, self.now)]
            if not times or min(times) > until:
                break
            self.now = min(times)
            while self._coming and self._coming[0].at <= self.now:
                client = self._coming.popleft()
                self.backlog[client.listener].append(client)
            self._accept()  # of one instant, arrivals come first
            self.quotas.process_timers(self.now)
        self.now = max(self.now, until if until < 10**9 else self.now)

    def leave(self, client: Client) -> None:
        self.quotas.release(client.listener, client.address, self.now)
        self._accept()

    def update_limits(self, limits: Limits) -> None:
        self.quotas.update_limits(limits, self.now)
        self._accept()

    def state(self, now: int) -> QuotasState:
        return collect_state(self.quotas, self.principals, now)

    def _accept(self) -> None:
        for listener, waiting in self.backlog.items():
            while waiting and not self.quotas.is_blocked(listener):
                client = waiting.popleft()
                client.accepted = self.now
                self.quotas.submit(listener, client.address, client, self.now)

    def _admit(self, listener: str, client: Client) -> None:
        assert client.admitted is client.refused is None
        assert client.listener == listener
        client.admitted = self.now

    def _refuse(self, listener: str, client: Client) -> None:
        assert client.admitted is client.refused is None
        client.refused = self.now

    def _is_gone(self, client: Client) -> bool:
        return client.at + client.patience <= self.now

    def _evict(self, listeners: Collection[str]) -> None:
        self.evictions.append(listeners)
        self.on_evict(listeners)


def limits(
    own: int | None = None,
    *,
    samples: int = 11,
    ips: dict[str, int] | None = None,
    recheck: bool = True,
    **rest: object,
) -> Limits:
    """Limits of one listener, ``CLIENT``: its own rate, and those of addresses."""
    listener = ListenerLimits(rate=Quota(own) if own else Quota())
    by_address = {address: Quota(limit) for address, limit in (ips or {}).items()}
    return Limits(
        **{"listeners": {"CLIENT": listener}, "ip_rates": by_address, "samples": samples, "recheck": recheck, **rest}
    )


def admitted(clients: Iterable[Client]) -> list[int]:
    return [client.admitted for client in clients if client.admitted is not None]


def refused(clients: Iterable[Client]) -> list[int]:
    return [client.refused for client in clients if client.refused is not None]
