"""The text formats of ``/metrics``: Prometheus' (version 0.0.4) and OpenMetrics (version 1.0.0, with exemplars).

They are written from the definitions, a combination of label values at a time, so that a caller may pause between two.
With an object of ``prometheus_client`` for each sample a page takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite, isnan
from typing import Any

from prometheus_client.core import Exemplar

from proxy.telemetry.metric_definition import MetricDefinition
from proxy.telemetry.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"


def encode(definitions: Iterable[MetricDefinition], snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the page in Prometheus' text format, in small pieces."""
    for definition in definitions:
        help_text = definition.meaning.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {definition.full_name} {help_text}\n# TYPE {definition.full_name} {definition.kind}\n".encode()
        for labels, *numbers in definition.read(snapshot):
            yield "".join(_lines(definition, labels, numbers, exemplars=False)).encode()


def encode_openmetrics(definitions: Iterable[MetricDefinition], snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the page in the format OpenMetrics, in small pieces."""
    for definition in definitions:
        family = definition.full_name.removesuffix("_total") if definition.kind == "counter" else definition.full_name
        yield f"# HELP {family} {_escaped(definition.meaning)}\n# TYPE {family} {definition.kind}\n".encode()
        for labels, *numbers in definition.read(snapshot):
            yield "".join(_lines(definition, labels, numbers, exemplars=True)).encode()
    yield b"# EOF\n"


def _lines(
    definition: MetricDefinition, labels: tuple[str, ...], numbers: list[Any], *, exemplars: bool
) -> Iterator[str]:
    """Yield the lines of one combination of label values."""
    name = definition.full_name
    pairs = [f'{label}="{_escaped(value)}"' for label, value in zip(definition.labels, labels, strict=True)]
    braced = f"{{{','.join(pairs)}}}" if pairs else ""
    if definition.kind == "histogram":
        buckets, total, _ = numbers
        before = ",".join((*pairs, 'le="'))
        for end, count, exemplar in buckets:
            shown = _exemplar(exemplar) if exemplars and exemplar is not None else ""
            yield f'{name}_bucket{{{before}{end}"}} {count}{shown}\n'
        yield f"{name}_count{braced} {buckets[-1][1]}\n{name}_sum{braced} {_number(total)}\n"
    elif definition.kind == "summary":
        count, total = numbers
        yield f"{name}_count{braced} {_number(count)}\n{name}_sum{braced} {_number(total)}\n"
    else:
        yield f"{name}{braced} {_number(numbers[0])}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if isfinite(value):
        return str(int(value) if isinstance(value, bool) else value)
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


def _exemplar(exemplar: Exemplar) -> str:
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in exemplar.labels.items())
    return f" # {{{pairs}}} {_number(exemplar.value)} {exemplar.timestamp}"
