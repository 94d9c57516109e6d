"""Numbers of a sidecar between two samples."""

from math import inf
from typing import Any

import pytest

from proxy import text_table, top_screen
from proxy.net.open_connections import ConnectionsView, KafkaConnection
from proxy.text_table import format_table
from proxy.top import Sample, api_rows, client_rows, parse_metrics, totals


def connection(number: int, **changes: Any) -> KafkaConnection:
    values: dict[str, Any] = {
        "id": f"c-{number}", "state": "open", "listener": "CLIENT", "client_ip": "10.0.0.7", "client_port": number,
        "principal": "User:billing", "principal_source": "sasl", "open_time": 0.0, "idle_duration_ms": 0,
        "request_count": 0, "received_bytes": 0, "sent_bytes": 0,
    }  # fmt: skip
    return KafkaConnection(**{**values, **changes})


def sample(at: float, *connections: KafkaConnection, metrics: str = "") -> Sample:
    return Sample(at, ConnectionsView(len(connections), len(connections), list(connections)), parse_metrics(metrics))


@pytest.mark.promise("operations.md", "brokerside top adds up connections by client, the busiest first.")
def test_connections_are_added_up_and_the_busiest_come_first() -> None:
    before = sample(
        10.0,
        connection(1, request_count=100, received_bytes=1_000),
        connection(2, request_count=50),
        connection(3, request_count=7, principal="User:gone"),
    )
    after = sample(
        12.0,
        connection(1, request_count=120, received_bytes=5_000, in_flight=2),
        connection(2, request_count=60, principal="User:web", sent_bytes=10),
        connection(4, request_count=6, principal="User:web", group_id="g"),
        connection(5, request_count=1, in_flight=1),
    )
    rows = client_rows(before, after, "principal", "requests")
    assert [(row.name, row.connections, row.in_flight, row.requests) for row in rows] == [
        ("User:billing", 2, 3, 10.5),
        ("User:web", 2, 0, 8.0),
    ]
    assert [row.name for row in client_rows(before, after, "principal", "bytes-out")] == ["User:web", "User:billing"]
    assert [(row.name, row.connections) for row in client_rows(before, after, "group_id", "connections")] == [
        ("-", 3),
        ("g", 1),
    ]


PAGE = """\
brokerside_requests_total{{api="Produce",listener="A"}} {produced}
brokerside_requests_total{{api="Produce",listener="B"}} 10
brokerside_requests_total{{api="Fetch",listener="A"}} 5
brokerside_request_errors_total{{api="Produce",class="failure",listener="A"}} {failed}
brokerside_request_errors_total{{api="Produce",class="retriable",listener="A"}} {failed}
brokerside_request_duration_seconds_bucket{{api="Produce",listener="A",le="0.001"}} {fast}
brokerside_request_duration_seconds_bucket{{api="Produce",listener="A",le="0.002"}} {all}
brokerside_request_duration_seconds_bucket{{api="Produce",listener="A",le="+Inf"}} {all}
brokerside_connections_throttled_total{{action="drop",listener="A",quota="connections",scope="ip"}} {throttled}
brokerside_connections_active{{listener="A"}} 3
brokerside_connections_active{{listener="B"}} 4
brokerside_loop_lag_seconds 0.0015
brokerside_audit_queued 5
brokerside_audit_spooled 7
brokerside_audit_dropped_total{{reason="closed"}} 2
brokerside_else{{a="b"}} nonsense
"""


def page(produced: int = 0, failed: int = 0, fast: int = 0, all: int = 0, throttled: int = 0) -> str:
    return PAGE.format(produced=produced, failed=failed, fast=fast, all=all, throttled=throttled)


@pytest.mark.promise("operations.md", "brokerside top shows rates, errors and latencies of each api.")
def test_apis_have_rates_errors_and_the_latencies_of_the_interval() -> None:
    before, after = sample(0, metrics=page(100, 1, 100, 100)), sample(2, metrics=page(300, 5, 298, 300))
    (row,) = api_rows(before, after)
    assert (row.api, row.requests, row.errors, row.p50_ms, row.p99_ms) == ("Produce", 100.0, 2.0, 1.0, 1.0)
    (row,) = api_rows(before, sample(2, metrics=page(300, 5, 290, 300)))
    assert (row.p50_ms, row.p99_ms) == (1.0, 2.0)
    beyond = page(300, 5, 290, 300).replace('le="+Inf"}} 300', "").replace('le="+Inf"} 300', 'le="+Inf"} 400')
    assert api_rows(before, sample(2, metrics=beyond))[0].p99_ms == inf


@pytest.mark.promise("operations.md", "brokerside top counts from zero where the sidecar began anew.")
def test_totals_are_those_of_the_sidecar() -> None:
    found = totals(sample(0, metrics=page(0, 1)), sample(2, metrics=page(20, 3, throttled=8)))
    assert (found.connections, found.requests, found.throttled, found.errors) == (7, 10.0, 4.0, 1.0)
    assert (found.loop_lag_ms, found.audit_waiting, found.audit_lost) == (1.5, 12, 2)
    found = totals(sample(0, metrics=page(1_000)), sample(2, metrics=page(20)))
    assert found.requests == 10.0, "counters of a sidecar that began anew count from zero"


@pytest.mark.promise(
    "operations.md", "In a narrow terminal brokerside top and connections continue a row on the next line."
)
def test_a_narrow_terminal_has_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients whose names are long; the rows of the screen are not more than fit."""
    named = [connection(number, principal=f"User:{'x' * 80}{number}") for number in range(40)]
    before, after = (sample(at, *named, metrics=page(20 * at, 3)) for at in (0, 2))
    for width in (60, 80, 300):
        for module in (text_table, top_screen):
            monkeypatch.setattr(module, "terminal_width", lambda width=width: width)
        shown = top_screen._page(before, after, "principal", "requests", height=24)
        assert max(map(len, shown.splitlines())) <= width
        assert len(shown.splitlines()) <= 24 - 2, "with the keys it fits"
        assert "event loop 2 ms late" in shown
        assert "12 events wait, 2 lost" in shown
        assert "BYTES OUT/S" in shown
        folded = format_table(("ID", "NUMBER"), [("a" * 50, "1"), ("b", "2" * 12)])
        if width == 60:
            assert folded.splitlines() == ["ID", "        NUMBER", "a" * 50, " " * 13 + "1", "b", "  " + "2" * 12]
        else:
            assert len(folded.splitlines()) == 3
