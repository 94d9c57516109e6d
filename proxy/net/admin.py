"""The admin endpoint, on loopback unless configured otherwise.

* ``GET /metrics``: the metrics of docs/metrics.md. Scrapers that ask at the same time share a page.
* ``GET /livez``: 200 as long as the event loop runs.
* ``GET /readyz``: 200 if the sidecar accepts connections, every upstream accepts one from this host, and the broker is
  the configured one; else 503 with a sentence for each reason. The text of a 200 is ``ok``, or ``degraded: `` and why
  the audit works in part only: clients are served all the same, so no probe may keep them away.
* ``GET /quotas``: the current state of the connection limits, as ``QuotasView``.
* ``GET /connections``: open connections, as ``ConnectionsView``; ``?principal=``, ``client_id``, ``client_ip``,
  ``listener``, ``group_id``, ``transactional_id`` choose among them, ``limit`` says how many.
* ``POST /connections/close?id=ID``: closes one of them, by its id or the number at the end of that. 200 with its id,
  404 if it is not open, 503 if its worker does not answer.
* ``GET /features``: the feature versions of the fleet, as ``FeaturesStatus``.
* ``/groups``, ``/coordinator``: the groups of consumers (``group_pages``).
* ``GET /config``: the running configuration with secrets as ``***``, its hash, and when it was last loaded.
* ``POST /reload``: reads the configuration file again. 200 if it was applied or is unchanged, 422 with the errors if it
  was rejected, 503 if the sidecar is shutting down. ``last_applied`` of an unchanged one says what was applied last,
  and when: the watch of the file may have been faster.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
import structlog
from msgspec import structs

from proxy.config import Config, Listener, redacted
from proxy.errors import describe_os_error
from proxy.features.status import FeaturesStatus
from proxy.net import upstream_check
from proxy.net.group_pages import GroupPages
from proxy.net.http import AdminRequest, HttpServer, Response
from proxy.net.listener_manager import ListenerManager
from proxy.net.metrics_page import MetricsPage
from proxy.net.open_connections import FILTERS, ConnectionList, ConnectionsView, choose, number_of
from proxy.net.tls_contexts import TlsContexts
from proxy.net.upstream import Upstream
from proxy.quotas_view import build_view
from proxy.reload import Reloader, ReloadOutcome
from proxy.telemetry.metrics import choose_format
from proxy.telemetry.snapshot import QuotaSource, Snapshot

log = structlog.get_logger(__name__)

DEFAULT_LISTED, MAX_LISTED = 1_000, 10_000
"""Connections that ``/connections`` lists without a ``limit``, and at most."""

ENCODED_AT_ONCE = 500
"""Connections that are encoded in one step: the event loop waits for it, about 1 ms, since it holds the interpreter."""

MAX_DIGITS, MAX_SHOWN = 9, 300
"""Digits of the longest number that is read, and characters of a refused value that the answer repeats."""

READINESS_CONNECT_TIMEOUT = 1.0
"""Seconds within which an upstream has to accept the connection of ``/readyz``."""


RELOAD_STATUS: dict[ReloadOutcome, HTTPStatus] = {
    "applied": HTTPStatus.OK,
    "unchanged": HTTPStatus.OK,
    "rejected": HTTPStatus.UNPROCESSABLE_ENTITY,
    "draining": HTTPStatus.SERVICE_UNAVAILABLE,
}


class QuotaSourceStatus(Protocol):
    """Whether reading the quotas from the Kafka cluster works."""

    ok: bool
    """Whether the cluster answered the last request."""
    last_ok_at: float
    """The event loop's time of the last answer; NaN before the first one."""
    problem: str | None
    """What is wrong with the quotas of the cluster; None if nothing is."""


class FleetStatus(Protocol):
    """This sidecar among those of the cluster."""

    @property
    def registry_dropped(self) -> Mapping[str, int]:
        """Numbers of records of the registry that were dropped, by reason."""

    @property
    def broker_id_taken(self) -> str:
        """Which other sidecar, started later, has the same ``broker.id``; empty if none has."""


class AdminEndpoint:
    """Serves the state of the listeners, of the configuration and of the quota source.

    ``source`` is None if the cluster's quotas are not read. ``features_status()`` returns what is known of the fleet's
    features. ``groups``: without it, the coordinator of groups is not enabled.
    """

    def __init__(
        self,
        listeners: ListenerManager,
        reloader: Reloader,
        source: QuotaSourceStatus | None,
        fleet: FleetStatus | None = None,
        features_status: Callable[[], FeaturesStatus] = FeaturesStatus,
        groups: GroupPages | None = None,
    ) -> None:
        self._bind = reloader.config.admin.bind
        self._checked: set[str] = set()  # listeners whose broker was found to be the configured one
        self._tls = TlsContexts(reloader.config)
        self._upstreams = self._create_upstreams(reloader.config)
        self._listeners = listeners
        self._reloader = reloader
        self._source = source
        self._fleet = fleet
        self._features_status = features_status
        self._groups = groups or GroupPages()
        self._page = MetricsPage(self._snapshot)
        self._server = HttpServer(
            {
                "/metrics": self._metrics,
                "/livez": self._livez,
                "/readyz": self._readyz,
                "/quotas": self._quotas,
                "/connections": self._connections,
                "/features": self._features,
                "/config": self._config,
                **self._groups.gets,
            },
            {"/reload": self._reload, "/connections/close": self._close_connection, **self._groups.posts},
            {self._bind.host.lower(), *reloader.config.admin.hosts},
        )

    def start(self, sock: socket.socket) -> None:
        """Answer requests to the listening socket ``sock``, which belongs to the endpoint from now on."""
        self._server.start(sock)

    @property
    def listening_socket(self) -> socket.socket:
        """The listening socket. Needs ``start``."""
        return self._server.listening_socket

    def stop_accepting(self) -> None:
        """Stop listening, since a successor answers from now on."""
        self._server.stop_accepting()

    async def prepare_config(self, config: Config) -> None:
        """Build the contexts of TLS to the brokers of a new configuration. Raises LocalError."""
        await self._tls.prepare_config(config)

    def discard_config(self) -> None:
        """Forget what ``prepare_config`` has built."""
        self._tls.discard()

    def update_config(self, config: Config) -> None:
        """Take over the listeners of a new configuration, and ``admin.hosts``. Needs ``prepare_config``."""
        self._checked.clear()
        self._tls.update_config(config)
        self._upstreams = self._create_upstreams(config)
        self._server.allow_hosts({self._bind.host.lower(), *config.admin.hosts})

    def _create_upstreams(self, config: Config) -> dict[str, Upstream]:
        return {
            one.name: Upstream(one.upstream, READINESS_CONNECT_TIMEOUT, tls=self._tls[one.name])
            for one in config.listeners
        }

    async def find_problems(self) -> list[str]:
        """Return why the sidecar is not ready, without the fact that it does not accept yet; empty if it is."""
        problems = [self._listeners.not_ready_reason]
        if not any(problems):
            listeners = self._reloader.config.listeners
            problems = await asyncio.gather(*(self._check_listener(listener) for listener in listeners))
        return [problem for problem in problems if problem]

    async def close(self) -> None:
        """Stop listening and cancel requests that are being answered."""
        self._page.close()
        await self._server.close()

    async def _metrics(self, request: AdminRequest) -> Response:
        wanted = choose_format(request.accept)
        return Response(await self._page.get(wanted), content_type=wanted.value)

    async def _livez(self, request: AdminRequest) -> Response:
        return Response(b"ok\n")

    async def _readyz(self, request: AdminRequest) -> Response:
        problem = self._listeners.readiness_problem
        failed = [problem] if problem else await self.find_problems()
        found = [self._listeners.degradation, self._fleet.broker_id_taken if self._fleet is not None else ""]
        degradation = "; ".join(filter(None, found))
        lines = [*failed, f"degraded: {degradation}"] if degradation else failed or ["ok"]
        return Response("".join(f"{line}\n" for line in lines).encode(), 503 if failed else 200)

    async def _quotas(self, request: AdminRequest) -> Response:
        return _json_response(
            build_view(self._listeners.quotas_state(), self._source.problem if self._source is not None else None)
        )

    async def _features(self, request: AdminRequest) -> Response:
        return _json_response(self._features_status())

    async def _connections(self, request: AdminRequest) -> Response:
        wanted = {name: value for name, value in request.query.items() if name != "limit"}
        limit = request.query.get("limit", str(DEFAULT_LISTED))
        unknown = sorted(wanted.keys() - {*FILTERS})
        if unknown:
            return _bad_request(f"there is no parameter {unknown[0]}; there are: {', '.join((*FILTERS, 'limit'))}")
        most = int(limit) if limit.isascii() and limit.isdigit() and len(limit) <= MAX_DIGITS else 0
        if not 1 <= most <= MAX_LISTED:
            return _bad_request(f"limit is {limit[:MAX_SHOWN]!r}; allowed are 1 to {MAX_LISTED}")
        found = await self._listeners.list_connections()
        body = await asyncio.to_thread(_encode_connections, found, wanted, most)
        return Response(body, content_type="application/json")

    async def _close_connection(self, request: AdminRequest) -> Response:
        given = request.query.get("id", "")
        number = number_of(given)
        if number is None:
            return _bad_request(
                f"id is {given[:MAX_SHOWN]!r}; it has to be the id of a connection, or the number at its end"
            )
        try:
            found = await self._listeners.find_connection(number)
        except TimeoutError as error:
            return _json_response({"error": str(error)}, HTTPStatus.SERVICE_UNAVAILABLE)
        # Numbers begin again with each run of the sidecar, so another id with this number is not meant.
        if found is None or not (given == found.id or given.isdigit()) or not self._listeners.close_connection(number):
            return _json_response({"error": f"connection {given[:MAX_SHOWN]} is not open"}, HTTPStatus.NOT_FOUND)
        log.info("connection_closed_by_operator", connection=found.id)
        return _json_response({"closed": found.id})

    async def _config(self, request: AdminRequest) -> Response:
        state = self._reloader.state
        config = redacted(self._reloader.config)
        return _json_response({"hash": state.hash, "loaded_at": state.loaded_at, "config": config})

    async def _reload(self, request: AdminRequest) -> Response:
        done = await self._reloader.reload("admin")
        rest: dict[str, Any] = (
            {"errors": done.errors} if done.errors else {"changed": done.changed, "changes": done.changes}
        )
        if done.result == "unchanged" and self._reloader.state.last_applied is not None:
            rest["last_applied"] = self._reloader.state.last_applied
        return _json_response({"result": done.result, **rest}, RELOAD_STATUS[done.result])

    async def _snapshot(self) -> Snapshot:
        snapshot = await self._listeners.snapshot()
        snapshot.reload = self._reloader.state
        snapshot.source = self._quota_source()
        if self._fleet is not None:
            snapshot.registry_dropped = dict(self._fleet.registry_dropped)
            snapshot.broker_id_taken = bool(self._fleet.broker_id_taken)
        snapshot.features = self._features_status()
        if self._groups.is_enabled:
            snapshot.coordinator = self._groups.status()
        return snapshot

    def _quota_source(self) -> QuotaSource | None:
        if self._source is None:
            return None
        ago = asyncio.get_running_loop().time() - self._source.last_ok_at
        return QuotaSource(self._source.ok, time.time() - ago, self._source.problem is not None)

    async def _check_listener(self, listener: Listener) -> str | None:
        """Return why this listener is not ready, or None. The broker's identity is checked until it is right once."""
        upstream = self._upstreams[listener.name]
        try:
            if listener.name not in self._checked and listener.is_readable and not listener.has_sasl:
                problem = await upstream_check.find_problem(listener, upstream, self._reloader.config.broker_id)
                if problem is None:
                    self._checked.add(listener.name)
                return problem
            (await upstream.open())[0].close()
        except Exception as error:  # mostly OSError; an invalid host name raises ValueError
            return f"listener {listener.name}: upstream {listener.upstream}: {describe_os_error(error) or 'no answer'}"
        return None


def _encode_connections(found: ConnectionList, wanted: Mapping[str, str], most: int) -> bytes:
    """Return the JSON of a ``ConnectionsView``. Called on a thread of its own: there may be many thousands."""
    chosen = choose(found.connections, wanted, most)
    pieces = [
        msgspec.json.encode(chosen.least_idle[start : start + ENCODED_AT_ONCE])[1:-1]
        for start in range(0, len(chosen.least_idle), ENCODED_AT_ONCE)
    ]
    connections = msgspec.Raw(b"[" + b",".join(pieces) + b"]")
    view = ConnectionsView(len(found.connections), chosen.number, [], found.unanswered)
    return msgspec.json.encode({**structs.asdict(view), "connections": connections}) + b"\n"


def _bad_request(error: str) -> Response:
    return _json_response({"error": error}, HTTPStatus.BAD_REQUEST)


def _json_response(answer: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(answer) + b"\n", status, "application/json")
