"""The protobuf format of ``/metrics``, the only one in which Prometheus takes native histograms today.

Source: ``io/prometheus/client/metrics.proto`` of github.com/prometheus/client_model; here is what a sidecar needs of
it. Each MetricFamily follows its length, a varint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.proto import serialize_length_prefixed
from prometheus_client.core import Exemplar, NativeHistogram

from proxy.telemetry.metric_definition import MetricDefinition
from proxy.telemetry.snapshot import Snapshot

CONTENT_TYPE = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"

_PACKAGE = "io.prometheus.client"

_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "LabelPair": ((1, "name", "string"), (2, "value", "string")),
    "Gauge": ((1, "value", "double"),),
    "Counter": ((1, "value", "double"),),
    "Summary": ((1, "sample_count", "uint64"), (2, "sample_sum", "double")),
    "Exemplar": ((1, "label", "LabelPair[]"), (2, "value", "double"), (3, "timestamp", ".google.protobuf.Timestamp")),
    "Bucket": ((1, "cumulative_count", "uint64"), (2, "upper_bound", "double"), (3, "exemplar", "Exemplar")),
    "BucketSpan": ((1, "offset", "sint32"), (2, "length", "uint32")),
    "Histogram": (
        (1, "sample_count", "uint64"),
        (2, "sample_sum", "double"),
        (3, "bucket", "Bucket[]"),
        (5, "schema", "sint32"),
        (6, "zero_threshold", "double"),
        (7, "zero_count", "uint64"),
        (12, "positive_span", "BucketSpan[]"),
        (13, "positive_delta", "sint64[]"),
        (16, "exemplars", "Exemplar[]"),
    ),
    "Metric": (
        (1, "label", "LabelPair[]"),
        (2, "gauge", "Gauge"),
        (3, "counter", "Counter"),
        (4, "summary", "Summary"),
        (7, "histogram", "Histogram"),
    ),
    "MetricFamily": ((1, "name", "string"), (2, "help", "string"), (3, "type", "int32"), (4, "metric", "Metric[]")),
}
"""Number, name and type of each field; the type of a repeated one ends in ``[]``. An enum is written as an int32."""

_TYPES = {"counter": 0, "gauge": 1, "summary": 2, "histogram": 4}
"""MetricType by kind of metric."""


def is_accepted(media_range: str) -> bool:
    """Return whether a media range of an ``Accept`` header, in lower case, is this format."""
    kind, *parameters = (part.strip() for part in media_range.split(";"))
    return kind == "application/vnd.google.protobuf" and {
        f"proto={_PACKAGE}.metricfamily",
        "encoding=delimited",
    } <= {*parameters}


def encode(definitions: Iterable[MetricDefinition], snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the page in pieces. Some are empty: a caller may pause after each combination of label values."""
    for definition in definitions:
        family = MetricFamily(name=definition.full_name, help=definition.meaning, type=_TYPES[definition.kind])
        for labels, *numbers in definition.read(snapshot):
            metric = family.metric.add()
            for label, value in zip(definition.labels, labels, strict=True):
                metric.label.add(name=label, value=value)
            _fill(getattr(metric, definition.kind), definition.kind, numbers)
            yield b""
        piece = BytesIO()
        serialize_length_prefixed(family, piece)
        yield piece.getvalue()


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="io/prometheus/client/metrics.proto",
        package=_PACKAGE,
        syntax="proto2",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field_name, kind in fields:
            field = message.field.add(name=field_name, number=number)
            kind, repeated = kind.removesuffix("[]"), kind.endswith("[]")
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in _MESSAGES or kind.startswith("."):
                field.type, field.type_name = (
                    field.TYPE_MESSAGE,
                    kind if kind.startswith(".") else f".{_PACKAGE}.{kind}",
                )
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.MetricFamily"))


MetricFamily = _message_class()
"""The class of a message with a metric of one name."""


def _fill(message: Any, kind: str, numbers: list[Any]) -> None:
    if kind == "histogram":
        buckets, message.sample_sum, native = numbers
        for end, count, exemplar in buckets:
            bucket = message.bucket.add(cumulative_count=count, upper_bound=float(end))
            if exemplar is not None:
                _fill_exemplar(bucket.exemplar, exemplar)
        message.sample_count = buckets[-1][1]
        _add_native(message, native())
    elif kind == "summary":
        count, message.sample_sum = numbers
        message.sample_count = int(count)
    else:
        (message.value,) = numbers


def _add_native(histogram: Any, native: NativeHistogram) -> None:
    histogram.schema, histogram.zero_threshold = native.schema, native.zero_threshold
    histogram.zero_count = int(native.zero_count)
    for span in native.pos_spans or ():
        histogram.positive_span.add(offset=span.offset, length=span.length)
    histogram.positive_delta.extend(native.pos_deltas or ())
    for exemplar in native.nh_exemplars or ():
        _fill_exemplar(histogram.exemplars.add(), exemplar)


def _fill_exemplar(message: Any, exemplar: Exemplar) -> None:
    message.value = exemplar.value
    for key, value in exemplar.labels.items():
        message.label.add(name=key, value=value)
    assert isinstance(exemplar.timestamp, float)
    message.timestamp.FromNanoseconds(round(exemplar.timestamp * 1000) * 1_000_000)
