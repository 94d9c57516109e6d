"""Writes the dashboards of ``deploy/grafana/``: ``python -m tests.tools.dashboards`` (``--check``: only compares them).

Runs itself in the environment of ``deploy/locks/deploy.txt``, which has Grafana's builders.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "deploy" / "grafana", ROOT / "deploy" / "helm" / "brokerside" / "files" / "dashboards")
"""The second one is the first one's copy, since a chart reads no files outside of its folder."""

HEIGHT = 8
WIDTH = 24

Query = tuple[str, str]
"""PromQL with ``$sidecars`` for the selection of sidecars, and the legend of its series."""

Panel = tuple[str, str, str, list[Query]]
"""Title, Grafana's unit, what it shows, queries."""

Rows = dict[str, list[Panel]]
"""Panels by the title of their row."""

SELECTED = 'job=~"$job", instance=~"$instance"'


def rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate(brokerside_{metric}{{{SELECTED}}}[$__rate_interval]))"


def gauge(metric: str, by: str, function: str = "sum") -> str:
    return f"{function} by ({by}) (brokerside_{metric}{{{SELECTED}}})"


def legend(by: str) -> str:
    return " ".join("{{" + name + "}}" for name in by.split(", "))


def rates(metric: str, by: str = "instance") -> list[Query]:
    return [(rate(metric, by), legend(by))]


def gauges(metric: str, by: str = "instance", function: str = "sum") -> list[Query]:
    return [(gauge(metric, by, function), legend(by))]


def busiest(queries: list[Query]) -> list[Query]:
    return [(f"topk(10, {query})", text) for query, text in queries]


def quantiles(metric: str, by: str) -> list[Query]:
    """Return the 99 % of a classic histogram."""
    return [(f"histogram_quantile(0.99, {rate(f'{metric}_bucket', f'{by}, le')})", legend(by))]


def part(metric: str, of: str, by: str = "instance") -> list[Query]:
    return [(f"{metric}{{{SELECTED}}} / {of}{{{SELECTED}}}", legend(by))]


def full(metric: str, scope: str, quota: str, listener: str = "") -> Query:
    """Return a gauge as part of the limit of a listener or of the whole sidecar."""
    by = f"job, instance{', listener' * bool(listener)}"
    limit = f'brokerside_quota_limit{{{SELECTED}, scope="{scope}", quota="{quota}"}}'
    return f"{gauge(metric, by)} / on ({by}) {limit}", f"{{{{instance}}}}{listener}"


NEEDS = "Needs the observer request_metrics."

OVERVIEW: Rows = {
    "State": [
        ("Sidecars", "short", "Those that Prometheus reaches.", [(f"sum(up{{{SELECTED}}})", "up")]),
        ("Open connections", "short", "Of clients.", gauges("connections_active")),
        (
            "Event loop, late by",
            "s",
            "By how much the last tick was late; everything that the sidecar carries waits as long.",
            gauges("loop_lag_seconds", function="max"),
        ),
    ],
    "Traffic": [
        ("Requests", "reqps", "", rates("requests_total")),
        ("Requests by api", "reqps", "", busiest(rates("requests_total", "api"))),
        ("Bytes", "Bps", "Both directions.", rates("bytes_total", "direction")),
        (
            "Errors",
            "reqps",
            f"By the worst class; only `failure` is one. {NEEDS}",
            rates("request_errors_total", "class"),
        ),
        (
            "Latency, 99 %",
            "s",
            f"From the last byte of a request to the last byte of its response. {NEEDS}",
            quantiles("request_duration_seconds", "api"),
        ),
        (
            "Latency of the sidecar itself, 99 %",
            "s",
            f"What the broker does not take. {NEEDS}",
            quantiles("request_sidecar_duration_seconds", "instance"),
        ),
    ],
    "Resources": [
        (
            "CPU",
            "percentunit",
            "Of one core.",
            [(f"rate(process_cpu_seconds_total{{{SELECTED}}}[$__rate_interval])", legend("instance"))],
        ),
        ("Memory", "bytes", "Resident.", [(f"process_resident_memory_bytes{{{SELECTED}}}", legend("instance"))]),
        ("Descriptors", "percentunit", "Part of those that it may have.", part("process_open_fds", "process_max_fds")),
        (
            "Memory that clients hold",
            "percentunit",
            "Part of the limit. From three quarters on bodies are not kept.",
            part("brokerside_memory_charged_bytes", "brokerside_memory_limit_bytes"),
        ),
    ],
}

CLIENTS: Rows = {
    "Connections": [
        ("Opened", "cps", "Connections accepted.", rates("connections_accepted_total")),
        ("Ended", "cps", "By cause.", busiest(rates("connections_closed_total", "cause"))),
        (
            "Broker did not accept",
            "cps",
            "Connections of clients that were closed for it.",
            rates("upstream_connect_failures_total", "instance, listener"),
        ),
    ],
    "The busiest, by the observer request_metrics": [
        ("Principals, requests", "reqps", "", busiest(rates("principal_requests_total", "principal"))),
        ("Principals, bytes in", "Bps", "", busiest(rates("principal_received_bytes_total", "principal"))),
        ("Principals, bytes out", "Bps", "", busiest(rates("principal_sent_bytes_total", "principal"))),
        ("Topics, bytes in", "Bps", "", busiest(rates("topic_received_bytes_total", "topic"))),
        ("Topics, bytes out", "Bps", "", busiest(rates("topic_sent_bytes_total", "topic"))),
        ("Groups, bytes out", "Bps", "", busiest(rates("group_sent_bytes_total", "group"))),
    ],
    "Unusual requests": [
        (
            "Not forwarded",
            "reqps",
            "Answered, closed or denied by the sidecar.",
            rates("intercepted_requests_total", "api, verdict"),
        ),
        (
            "Frames that Kafka does not allow",
            "cps",
            "Each ended its connection.",
            rates("frames_invalid_total", "side, reason"),
        ),
    ],
}

LIMITS: Rows = {
    "How full": [
        (
            "Connections, part of the limit",
            "percentunit",
            "Of each listener, and of all together.",
            [
                full("connections_active", "listener", "connections", " {{listener}}"),
                full("connections_active", "broker", "connections"),
            ],
        ),
        (
            "Rate, part of the limit",
            "percentunit",
            "Above 100 % new connections wait.",
            [full("broker_connection_accept_rate", "broker", "connection_creation_rate")],
        ),
        ("Busiest addresses", "cps", "Of those that have a limit.", busiest(gauges("ip_connection_accept_rate", "ip"))),
    ],
    "Who meets one": [
        (
            "Throttled connections",
            "cps",
            "By what they met; `observe` is a dry run.",
            [(rate("connections_throttled_total", "scope, quota, action"), "{{scope}} {{quota}}: {{action}}")],
        ),
        (
            "Listener blocked",
            "percentunit",
            "Part of the time in which nothing was accepted.",
            rates("acceptor_blocked_seconds_total", "instance, listener"),
        ),
        (
            "Waiting",
            "short",
            "In the kernel's queue, for a limit, or held because of their address.",
            [
                (gauge(f"connections_{where}", "instance"), f"{{{{instance}}}} {where}")
                for where in ("queued", "waiting", "held")
            ],
        ),
    ],
}

AUDIT: Rows = {
    "Events": [
        ("Delivered", "eps", "Acknowledged by the audit topic.", rates("audit_delivered_total")),
        ("Lost", "eps", "By reason. Should be empty.", rates("audit_dropped_total", "reason")),
        (
            "Waiting",
            "short",
            "On disk, and in memory.",
            [
                (gauge("audit_spooled", "instance"), "{{instance}} on disk"),
                (gauge("audit_queued", "instance"), "{{instance}} in memory"),
            ],
        ),
        ("Spool", "bytes", "", gauges("audit_spool_bytes")),
        (
            "Problems",
            "short",
            "1 while the spool's disk fails, or the topic has a problem.",
            [
                (gauge("audit_spool_failed", "instance", "max"), "{{instance}} spool"),
                (gauge("audit_topic_problem", "problem", "max"), "{{problem}}"),
            ],
        ),
    ],
    "Cost": [
        ("Bytes to the topic", "Bps", "Before compression.", rates("audit_bytes_total")),
        ("Observers, queued", "short", "Exchanges that wait for an observer.", gauges("observer_queued", "observer")),
        (
            "Observers, lost",
            "eps",
            "Exchanges that an observer did not get.",
            rates("observer_dropped_total", "observer, reason"),
        ),
    ],
}

SPARK = "metrics_brokerside_driver_spark_streaming_"


def spark(name: str) -> str:
    """Return a gauge of Spark's streaming query; the name of the metric contains the query's id."""
    return f'sum({{__name__=~"{SPARK}.*_{name}_Value", job=~"$job"}})'


JOBS: Rows = {
    "The job, by Spark's own metrics (docs/jobs.md says how to turn them on)": [
        (
            "Records",
            "cps",
            "Of the audit topic: arriving, and processed.",
            [(spark("inputRate_total"), "arriving"), (spark("processingRate_total"), "processed")],
        ),
        ("Duration of a batch", "ms", "", [(spark("latency"), "batch")]),
        ("State", "short", "Rows and bytes that the query keeps.", [(spark("states_rowsTotal"), "rows")]),
    ],
    "What it has to read": [
        (
            "Events that sidecars deliver",
            "eps",
            "",
            [('sum(rate(brokerside_audit_delivered_total{instance=~"$instance"}[$__rate_interval]))', "events")],
        ),
        (
            "Records that sidecars deliver",
            "cps",
            "A record has up to 200 events.",
            [('sum(rate(brokerside_audit_records_total{instance=~"$instance"}[$__rate_interval]))', "records")],
        ),
    ],
}

DASHBOARDS: dict[str, tuple[str, str, Rows]] = {
    "overview": ("Brokerside: overview", "What the sidecars carry, and how they are.", OVERVIEW),
    "clients": ("Brokerside: clients", "Who uses the brokers.", CLIENTS),
    "limits": ("Brokerside: limits", "Limits on connections: how full, and who meets one.", LIMITS),
    "audit": ("Brokerside: audit", "Events on their way to the audit topic.", AUDIT),
    "jobs": ("Brokerside: jobs", "The Spark job that makes tables.", JOBS),
}


def dashboard(name: str) -> str:
    # Only the environment that ``main`` starts has it.
    from grafana_foundation_sdk.builders import dashboard as builders  # type: ignore[import-not-found]
    from grafana_foundation_sdk.builders import prometheus, timeseries
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # type: ignore[import-not-found]
    from grafana_foundation_sdk.models import dashboard as models  # type: ignore[import-not-found]

    source = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

    def variable(label: str, query: str) -> Any:
        made = builders.QueryVariable(label).label(label).datasource(source).query(query).multi(True).include_all(True)
        return made.all_value(".*").current(models.VariableOption(text="All", value="$__all", selected=True))

    def panel(found: Panel, width: int) -> Any:
        title, unit, description, queries = found
        made = (
            timeseries.Panel()
            .id(next(numbers))
            .title(title)
            .unit(unit)
            .description(description)
            .datasource(source)
            .min(0)
        )
        made = made.height(HEIGHT).span(width).fill_opacity(10)
        for ref_id, (expr, legend) in zip("ABC", queries, strict=False):
            made = made.with_target(prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(ref_id))
        return made

    numbers = count(1)
    title, description, rows = DASHBOARDS[name]
    made = builders.Dashboard(title).uid(f"brokerside-{name}").description(description).tags(["brokerside", "kafka"])
    made = made.refresh("30s").time("now-1h", "now").timezone("browser").editable()
    made = made.with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    jobs = "metrics_brokerside_driver_jvm_heap_used_Value" if name == "jobs" else "brokerside_build_info"
    made = made.with_variable(variable("job", f"label_values({jobs}, job)"))
    made = made.with_variable(variable("instance", "label_values(brokerside_build_info, instance)"))
    for heading, panels in rows.items():
        made = made.with_row(builders.Row(heading).id(next(numbers)))
        for found in panels:
            made = made.with_panel(panel(found, WIDTH // min(3, len(panels))))
    content: str = JSONEncoder(sort_keys=True, indent=2).encode(made.build())
    return content + "\n"


def main(arguments: list[str]) -> int:
    try:
        files = {folder / f"{name}.json": dashboard(name) for name in DASHBOARDS for folder in FOLDERS}
    except ModuleNotFoundError:
        from tests.tools.environment import made

        command = [made("deploy") / "bin" / "python", "-m", "tests.tools.dashboards", *arguments]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    if arguments == ["--check"]:
        stale = [path for path, content in files.items() if not path.exists() or path.read_text() != content]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run make docs")
        return 1 if stale else 0
    for path, content in files.items():
        json.loads(content)
        path.write_text(content)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
