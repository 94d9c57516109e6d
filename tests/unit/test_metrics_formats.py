"""The formats of /metrics, and which of them a scraper gets."""

from io import BytesIO
from typing import Any

import pytest
from google.protobuf.proto import parse_length_prefixed
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from observers.event import ROLLUP_BUCKETS
from observers.request_metrics_stats import ApiStats, Durations, Exemplar, LabelStats, RequestStats
from proxy.telemetry import protobuf_format
from proxy.telemetry.metrics import PageFormat, choose_format, render
from proxy.telemetry.snapshot import Snapshot

PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
NAME = "brokerside_request_duration_seconds"
AT = 1_700_000_000.25


@pytest.fixture
def snapshot() -> Snapshot:
    """Eight Metadata requests: two of no time, the others around 4 ms and 1 s."""
    latency = Durations(6_024_000, {0: 2, 12: 3, 28: 3}, {-64: 1, -63: 2, 0: 2, 3: 1}, 2)
    stats = ApiStats(8, 1, 0, 0, 400, 640, latency, latency, latency, latency, {12: Exemplar("c-7", 4096, AT)})
    return Snapshot({}, requests=RequestStats({"CLIENT": {3: stats}}))


def samples(page: str, read: Any = read_text) -> list[Any]:
    return [one for family in read(page) for one in family.samples]


def openmetrics(snapshot: Snapshot) -> list[Any]:
    return samples(render(snapshot, PageFormat.OPENMETRICS).decode(), read_openmetrics)


NEWER = OPENMETRICS.replace("1.0.0", "99")


@pytest.mark.promise("metrics.md", "A scraper gets the format that it prefers: text, OpenMetrics or protobuf.")
def test_a_scraper_gets_what_it_prefers() -> None:
    for accept, expected in (
        ("", "text/plain"),
        ("*/*", "text/plain"),
        ("text/html", "text/plain"),
        (OPENMETRICS, "application/openmetrics-text"),
        (PROTOBUF, "application/vnd.google.protobuf"),
        (PROTOBUF.replace("delimited", "text"), "text/plain"),
        (f"text/plain;version=0.0.4;q=0.3,{OPENMETRICS};q=0.5,{PROTOBUF};q=0.4", "application/openmetrics-text"),
        (f"{PROTOBUF}, {OPENMETRICS};q=0.8, text/plain;q=0.5, */*;q=0.1", "application/vnd.google.protobuf"),
        (f"{PROTOBUF};q=0,{OPENMETRICS};q=none", "text/plain"),
        (f"{NEWER},text/plain;q=0.5", "text/plain"),
        (f"{NEWER},{OPENMETRICS};q=0.5", "application/openmetrics-text"),
        ("application/openmetrics-text", "application/openmetrics-text"),
        (f"text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,{OPENMETRICS};q=0.5", "text/plain"),
    ):
        assert choose_format(accept).value.partition(";")[0] == expected, accept


@pytest.mark.promise("metrics.md", "Every format of a page has the same samples, and exemplars name a connection.")
def test_all_formats_have_the_same_samples_and_openmetrics_have_exemplars(snapshot: Snapshot) -> None:
    def by_labels(found: list[Any]) -> dict[Any, float]:
        return {(one.name, tuple(sorted(one.labels.items()))): one.value for one in found}

    text = by_labels(samples(render(snapshot).decode()))
    assert text == by_labels(openmetrics(snapshot)) == dict(protobuf_samples(snapshot))

    found = [one for one in openmetrics(snapshot) if one.exemplar]
    assert [(one.name, one.labels["le"]) for one in found] == [(f"{NAME}_bucket", "0.004096")]
    exemplar = found[0].exemplar
    assert exemplar is not None
    assert (exemplar.labels, exemplar.value, float(exemplar.timestamp or 0)) == ({"connection_id": "c-7"}, 0.004096, AT)


@pytest.mark.promise("metrics.md", "Native histograms, with exemplars, are in protobuf alone.")
def test_protobuf_has_native_histograms_and_exemplars(snapshot: Snapshot) -> None:
    (metric,) = families(snapshot)[NAME].metric
    histogram = metric.histogram
    assert (histogram.sample_count, histogram.sample_sum, histogram.schema) == (8, 6.024, 3)
    assert (histogram.zero_count, histogram.zero_threshold) == (2, 2.0**-128)
    assert [(span.offset, span.length) for span in histogram.positive_span] == [(-64, 2), (62, 1), (2, 1)]
    assert list(histogram.positive_delta) == [1, 1, 0, -1]
    (exemplar,) = histogram.exemplars
    assert {pair.name: pair.value for pair in exemplar.label} == {"connection_id": "c-7"}
    assert exemplar.timestamp.ToMilliseconds() == AT * 1000
    assert [bucket.exemplar.value for bucket in histogram.bucket if bucket.HasField("exemplar")] == [0.004096]

    # One of no time at all is native, too: Prometheus knows it by a threshold above 0.
    none = Durations(0, {0: 1}, {}, 1)
    snapshot.requests.apis["CLIENT"] = {3: ApiStats(1, 0, 0, 0, 50, 80, none, none, none, none, {})}
    (metric,) = families(snapshot)[NAME].metric
    assert (metric.histogram.sample_count, metric.histogram.zero_count) == (1, 1)
    assert metric.histogram.zero_threshold > 0


@pytest.mark.promise("metrics.md", "Durations of requests have 40 buckets, their parts every fourth of these.")
def test_parts_of_a_duration_have_every_fourth_bucket(snapshot: Snapshot) -> None:
    page = samples(render(snapshot).decode())
    whole, service, part = (
        {float(one.labels["le"]): one.value for one in page if one.name == f"brokerside_{name}_bucket"}
        for name in (
            "request_duration_seconds",
            "request_service_duration_seconds",
            "request_upstream_duration_seconds",
        )
    )
    assert len(whole) == len(service) == len(ROLLUP_BUCKETS) + 1
    assert len(part) == 11
    assert part.items() <= whole.items()


def test_label_values_and_descriptions_are_escaped() -> None:
    hostile = 'a\\b"c\nd'
    snapshot = Snapshot({}, requests=RequestStats({}, {hostile: LabelStats(1, 0, 2, 3)}))
    for found in (samples(render(snapshot).decode()), openmetrics(snapshot)):
        named = [one.labels["principal"] for one in found if one.name == "brokerside_principal_requests_total"]
        assert named == [hostile]


def families(snapshot: Snapshot) -> dict[str, Any]:
    return families_of(render(snapshot, PageFormat.PROTOBUF))


def families_of(page: bytes) -> dict[str, Any]:
    stream, found = BytesIO(page), {}
    while message := parse_length_prefixed(protobuf_format.MetricFamily, stream):
        found[message.name] = message
    return found


def protobuf_samples(snapshot: Snapshot) -> Any:
    for family in families(snapshot).values():
        for metric in family.metric:
            labels = tuple(sorted((pair.name, pair.value) for pair in metric.label))
            for kind in ("gauge", "counter"):
                if metric.HasField(kind):
                    yield (family.name, labels), getattr(metric, kind).value
            for kind in ("summary", "histogram"):
                if metric.HasField(kind):
                    value = getattr(metric, kind)
                    yield (f"{family.name}_sum", labels), value.sample_sum
                    yield (f"{family.name}_count", labels), value.sample_count
            for bucket in metric.histogram.bucket:
                end = "+Inf" if bucket.upper_bound == float("inf") else repr(bucket.upper_bound)
                yield (f"{family.name}_bucket", tuple(sorted((*labels, ("le", end))))), bucket.cumulative_count
