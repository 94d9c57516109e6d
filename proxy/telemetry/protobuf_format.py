"""The protobuf format of ``/metrics``, the only one in which Prometheus takes native histograms today.

Source: ``io/prometheus/client/metrics.proto`` of github.com/prometheus/client_model; here is what a sidecar needs of
it. Each MetricFamily follows its length, a varint.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.proto import serialize_length_prefixed
from prometheus_client.core import Exemplar, Metric, NativeHistogram, Sample

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
"""MetricType by the names of prometheus_client."""


def is_accepted(media_range: str) -> bool:
    """Return whether a media range of an ``Accept`` header, in lower case, is this format."""
    kind, *parameters = (part.strip() for part in media_range.split(";"))
    return kind == "application/vnd.google.protobuf" and {
        f"proto={_PACKAGE}.metricfamily",
        "encoding=delimited",
    } <= {*parameters}


def encode(families: Iterable[Metric]) -> bytes:
    """Return the page."""
    page = BytesIO()
    for family in families:
        serialize_length_prefixed(_encode_family(family), page)
    return page.getvalue()


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


def _encode_family(family: Metric) -> Any:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    message = MetricFamily(name=name, help=family.documentation, type=_TYPES[family.type])
    metrics: dict[tuple[tuple[str, str], ...], Any] = {}
    for sample in family.samples:
        labels = tuple((key, value) for key, value in sorted(sample.labels.items()) if key != "le")
        if labels not in metrics:
            metrics[labels] = message.metric.add()
            for key, value in labels:
                metrics[labels].label.add(name=key, value=value)
        _add_sample(metrics[labels], family, sample)
    return message


def _add_sample(metric: Any, family: Metric, sample: Sample) -> None:
    value = getattr(metric, family.type)
    suffix = sample.name.removeprefix(family.name)
    if sample.native_histogram is not None:
        _add_native(value, sample.native_histogram)
    elif suffix == "_bucket":
        bucket = value.bucket.add(cumulative_count=int(sample.value), upper_bound=float(sample.labels["le"]))
        if sample.exemplar is not None:
            _fill_exemplar(bucket.exemplar, sample.exemplar)
    elif suffix == "_count":
        value.sample_count = int(sample.value)
    elif suffix == "_sum":
        value.sample_sum = sample.value
    else:
        value.value = sample.value


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
