"""The command for those who write observers."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.commands.arguments import command, group

if TYPE_CHECKING:
    from observers.packet_capture import Address, Bytes
    from observers.trial import TrialThread
    from proxy.commands.arguments import Commands
    from proxy.config import Config, Listener
    from proxy.core.exchange import ConnectionTransition
    from proxy.core.observation_interest import ObservationSink
    from proxy.core.session import Session

FLUSH_INTERVAL = 0.05
"""Seconds of the capture after which exchanges are handed over, as a sidecar does."""

CLOSE_TIMEOUT = 30.0
"""Seconds that the observer's ``close`` gets as its timeout."""


def add(commands: Commands) -> None:
    """Put it on the command line."""
    made = command(group(commands, "observers", "Help with observers of your own."), "try", try_observer)
    made.add_argument("capture", type=Path, metavar="FILE", help="What tcpdump -w wrote (pcap).")
    text = "The class, where this Python finds it (PYTHONPATH)."
    made.add_argument("--observer", required=True, metavar="MODULE:CLASS", help=text)
    text = "A sidecar's configuration: the observer's settings, and what else it is configured with."
    made.add_argument("-c", "--config", type=Path, metavar="FILE", help=text)
    text = "Whose connections they are; default: the first of the configuration."
    made.add_argument("--listener", metavar="NAME", help=text)
    text = "The port that clients dial in the capture; default: that of the listener, 9092 without a configuration."
    made.add_argument("--port", type=int, metavar="N", help=text)
    text = "Measure what the observer holds at the end, too. The times are longer then."
    made.add_argument("--memory", action="store_true", help=text)


def try_observer(
    capture: Path, observer: str, config: Path | None, listener: str | None, port: int | None, memory: bool
) -> int:
    """Run an observer over captured connections, without a sidecar, a broker or a network."""
    from observers.packet_capture import CaptureError, conversations, read_segments
    from observers.trial import TrialThread
    from proxy.errors import LocalError
    from proxy.net.data_plane import dispatcher_of, observation_of, observer_errors

    loaded, chosen = _configured(config, observer, listener)
    trials: list[TrialThread] = []

    def trial(*args: Any, **options: Any) -> TrialThread:
        trials.append(TrialThread(*args, **options))
        return trials[-1]

    dispatcher = dispatcher_of(loaded, "", 1, thread=trial, fetch_names=dict)
    with observer_errors():
        dispatcher.start()
    replay = _Replay(capture, loaded, chosen, observation_of(loaded, dispatcher))
    held = 0
    try:
        with capture.open("rb") as file:
            if memory:
                tracemalloc.start()
            flushed_at = 0.0
            for part in conversations(read_segments(file, str(capture)), port or chosen.bind.port):
                replay.take(part)
                if part.time - flushed_at >= FLUSH_INTERVAL:
                    dispatcher.flush()
                    flushed_at = part.time
            dispatcher.flush()
            if memory:
                gc.collect()
                held = tracemalloc.get_traced_memory()[0]
                tracemalloc.stop()
    except OSError as error:
        raise LocalError(f"{capture} cannot be read: {error.strerror}") from None
    except CaptureError as error:
        raise LocalError(str(error)) from None
    finally:
        dispatcher.close(CLOSE_TIMEOUT)
    if not replay.connections:
        raise LocalError(f"{capture}: no connection to port {port or chosen.bind.port}")
    (done,) = trials
    return _report(done, replay, held if memory else None)


def _configured(path: Path | None, observer: str, listener: str | None) -> tuple[Config, Listener]:
    """Return a configuration with this observer alone, and the listener. Raises LocalError."""
    from proxy.config import Config, load
    from proxy.errors import LocalError

    if path is None:
        one = {"name": listener or "CLIENT", "bind": "127.0.0.1:9092", "upstream": "127.0.0.1:9093"}
        config = Config.model_validate({"broker.id": 0, "listeners": [one]})
    else:
        config = load(path)
    config = config.model_copy(update={"observer_class_names": (observer,)})
    found = [one for one in config.listeners if listener in (None, one.name)]
    if not found:
        names = ", ".join(one.name for one in config.listeners)
        raise LocalError(f"--listener: {listener!r} is not in {path} (allowed: {names})")
    if found[0].security_protocol.endswith("SSL"):
        protocol = found[0].security_protocol
        raise LocalError(f"--listener: {found[0].name} has {protocol} (readable: PLAINTEXT, SASL_PLAINTEXT)")
    return config, found[0]


class _Replay:
    """Feeds captured connections to sessions. ``notes``: which of them ended early, and why."""

    def __init__(self, path: Path, config: Config, listener: Listener, sink: ObservationSink) -> None:
        from proxy.core.budget import Budget
        from proxy.core.counters import ListenerCounters

        self._path = path
        self._config = config
        self._listener = listener
        self._sink = sink
        self._counters = ListenerCounters()
        self._budget = Budget()
        self._sessions: dict[Address, Session] = {}
        self._broken: set[Address] = set()
        self._to_monotonic = time.monotonic() - time.time()  # observers get times of this clock
        self.notes: list[str] = []
        self.connections = 0
        """Those that were read, also in part, and those that could not be."""
        self.unread = 0
        """Of them those that could not be read to their end."""

    def take(self, part: Bytes) -> None:
        """Read what one side sent."""
        now = part.time + self._to_monotonic
        if part.note:
            if part.client not in self._sessions and part.client not in self._broken:
                self.connections += 1
            self._note(part.client, part.note)
        if not part.data:
            self._broken.discard(part.client)
            self._end(part.client, now, "client_closed")
        elif part.client not in self._broken:
            self._read(part, now)

    def _read(self, part: Bytes, now: float) -> None:
        from proxy.errors import PeerError

        session = self._sessions.get(part.client) or self._begin(part.client, now)
        try:
            (session.read_client_data if part.side == "client" else session.read_broker_data)(part.data, now)
        except PeerError as error:
            self._note(part.client, str(error))
            self._broken.add(part.client)
            self._end(part.client, now, f"{error.side}_{error.reason}")
        else:
            session.observe(now)
        self._budget.clear_recorded()

    def _begin(self, client: Address, now: float) -> Session:
        from proxy.core.exchange import Connection, ConnectionTransition
        from proxy.core.principal_tracker import PrincipalTracker
        from proxy.core.session import Session
        from proxy.net.client_identity import initial_principal

        self.connections += 1
        listener = self._listener
        principal, source = initial_principal(listener)
        bind = f"{listener.bind.host}:{listener.bind.port}"
        connection_id = f"{bind}-{client[0]}:{client[1]}-{self.connections}"
        connection = Connection(connection_id, listener.name, *client, now, principal, principal_source=source)
        tracker = PrincipalTracker(connection, listener.sasl_oauthbearer_sub_claim_name)
        max_frame = self._config.socket_request_max_bytes
        session = Session(connection, self._counters, self._sink, max_frame, tracker, None, self._budget)
        self._sessions[client] = session
        self._record_change(ConnectionTransition(connection, "opened", now))
        return session

    def _end(self, client: Address, now: float, cause: Any) -> None:
        from proxy.core.exchange import ConnectionTransition

        session = self._sessions.pop(client, None)
        if session is not None:
            session.close(now)
            self._record_change(
                ConnectionTransition(
                    session.connection, "closed", now, cause, requests=session.requests, client_id=session.client_id
                )
            )

    def _record_change(self, change: ConnectionTransition) -> None:
        self._sink.observed[0] += 1
        self._sink.record_change(change)

    def _note(self, client: Address, text: str) -> None:
        if client not in self._broken:
            self.unread += 1
        self.notes.append(f"{self._path}: connection of {client[0]}:{client[1]}: {text}")


def _report(done: TrialThread, replay: _Replay, held: int | None) -> int:
    """Print what happened. Returns the exit code: 1 where the observer raised."""
    for note in replay.notes:
        print(f"brokerside: {note}", file=sys.stderr)
    for text in done.tracebacks.values():
        print(text, end="", file=sys.stderr)
    stats = done.stats()
    items = stats.delivered + stats.failed
    print(f"observer     {stats.name}")
    print(f"connections  {replay.connections}, of which {replay.unread} could not be read to their end")
    print(f"passed       {items} exchanges and changes of connections")
    print(f"time         {done.seconds / items * 1e6 if items else 0:.0f} µs for each; {stats.slow} slow calls")
    if held is not None:
        print(f"held         {held} bytes at the end")
    errors = ", ".join(f"{method} {count}" for method, count in sorted(stats.errors.items()))
    print(f"raised       {errors or 'nothing'}")
    return 1 if stats.errors else 0
