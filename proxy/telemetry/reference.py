"""Writes docs/metrics.md from the definitions."""

from __future__ import annotations

from proxy.telemetry.definitions import METRICS, Definition

_INTRODUCTION = """\
# Metrics

Generated from `proxy/telemetry/definitions.py` by `make docs`.

`GET /metrics` on `admin.bind`, in Prometheus' text format. Counters begin at 0 with each start of the sidecar.
Series by `api`, `error`, `reason` or `method` appear with their first count, all others exist from the start. Every
set of labels is bounded: none holds what a client may choose. With several workers every number is the sum over them,
those that have ended included. Beside these there are the usual `process_…` metrics, also of all processes together.

| metric | type | labels | unit | meaning |
|---|---|---|---|---|
"""


def reference_markdown() -> str:
    """Return the whole page."""
    return _INTRODUCTION + "".join(_row(definition) for definition in METRICS)


def _row(metric: Definition) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `brokerside_{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.meaning} |\n"
