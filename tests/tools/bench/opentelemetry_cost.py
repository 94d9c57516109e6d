"""What the OpenTelemetry logs cost a sidecar, beside the audit topic: ``python -m tests.tools.bench.opentelemetry_cost``.

Starts a broker, and a process that takes OTLP requests and answers them. The exchanges of ``audit_cost``, paced, go
through each observer with everything that follows: CPU of all its threads, bytes of the requests.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h11
import structlog

from observers.audit import AuditObserver
from observers.event_observer import EventObserver
from observers.opentelemetry import OpenTelemetryLogsObserver
from proxy.local import cluster
from tests.tools.bench.audit_cost import EVENTS_A_SECOND, ROUNDS, SECONDS, Whole, auditing, exchanges, whole

SETTINGS: Mapping[str, tuple[type[EventObserver], Mapping[str, Any]]] = {
    "audit topic": (AuditObserver, {}),
    "audit topic, a spool": (AuditObserver, {"spool.max.bytes": 1 << 30}),
    "OpenTelemetry": (OpenTelemetryLogsObserver, {}),
    "OpenTelemetry, `compression: gzip`": (OpenTelemetryLogsObserver, {"compression": "gzip"}),
    "OpenTelemetry, a spool": (OpenTelemetryLogsObserver, {"spool.max.bytes": 1 << 30}),
    "OpenTelemetry, `mode: rollup`": (OpenTelemetryLogsObserver, {"mode": "rollup"}),
}


def take_requests() -> None:
    """Answer every request of one connection after the other, and print the bytes of its bodies."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            with listening.accept()[0] as connection:
                print(_serve(connection), flush=True)


def _serve(connection: socket.socket) -> int:
    http, size = h11.Connection(h11.SERVER), 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(connection.recv(1 << 20))
        elif isinstance(event, h11.Data):
            size += len(event.data)
        elif isinstance(event, h11.EndOfMessage):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            http.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            http.send(h11.EndOfMessage())
            http.start_next_cycle()
        elif isinstance(event, h11.ConnectionClosed):
            return size


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    observed = exchanges(EVENTS_A_SECOND)
    command = [sys.executable, "-c", "from tests.tools.bench.opentelemetry_cost import take_requests; take_requests()"]
    with (
        tempfile.TemporaryDirectory(prefix="opentelemetry-cost-") as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sink,
    ):
        assert sink.stdout is not None
        endpoint = f"http://127.0.0.1:{int(sink.stdout.readline())}"
        state = cluster.up(Path(folder), advertise="broker", progress=False)
        rounds_of: dict[str, list[Whole]] = {case: [] for case in SETTINGS}
        try:
            for turn in range(ROUNDS):
                for number, (case, (observer, settings)) in enumerate(SETTINGS.items()):
                    spool = {"spool.path": f"{folder}/{number}-{turn}"} if "spool.max.bytes" in settings else {}
                    to_topic = observer is AuditObserver
                    audit, own = {**settings, **spool}, {**settings, **spool, "endpoint": endpoint}
                    bootstrap, topic = state.internal_bootstrap, f"cost-{number}-{turn}"
                    cost = whole(
                        observed,
                        auditing(observer(), bootstrap, topic, audit if to_topic else {}, {} if to_topic else own),
                    )
                    if not to_topic:
                        cost = cost._replace(log=int(sink.stdout.readline()) / (len(observed) * SECONDS))
                    rounds_of[case].append(cost)
        finally:
            cluster.down(Path(folder))
            sink.kill()
    print(f"| at {EVENTS_A_SECOND:,} requests/s | CPU µs/request | of that librdkafka | B/request sent |")
    print("|---|---|---|---|")
    for case, costs in rounds_of.items():
        python, librdkafka, _, sent = map(statistics.median, zip(*costs, strict=True))
        print(f"| {case} | {python + librdkafka:.2f} | {librdkafka:.2f} | {f'{sent:.1f}' if sent else ''} |")


if __name__ == "__main__":
    main()
