"""What jobs and sidecars sign, what a job writes about itself, and which records refuse it: as sidecars do it."""

from importlib import metadata

import msgspec
import pytest

from proxy.config.hmac_keys import AUDIT, FEATURES, REGISTRY
from proxy.core import protected_topics
from proxy.core.authentication import HEADER, Authenticator
from proxy.features import records
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED
from proxy.features.records import FinalizedFeatures, FinalizedRange, PendingUpdate, ReaderRecord, SupportedRange
from spark_jobs import authentication, readers
from spark_jobs.errors import JobError
from spark_jobs.events import SCHEMA_LEVEL
from spark_jobs.reader_records import (
    ENABLED,
    FEATURE,
    FEATURES_KEY,
    LAYOUT_VERSION,
    MAX_RECORD,
    MIN_SCHEMA_LEVEL,
    AuditReader,
    check_levels,
    default_name,
)


def test_names_numbers_and_levels_are_the_sidecars() -> None:
    assert SUPPORTED[AUDIT_EVENT_SCHEMA] == (MIN_SCHEMA_LEVEL, SCHEMA_LEVEL)
    assert (FEATURE, FEATURES_KEY, ENABLED) == (AUDIT_EVENT_SCHEMA, records.FEATURES_KEY, records.ENABLED)
    assert (LAYOUT_VERSION, MAX_RECORD) == (records.LAYOUT_VERSION, records.MAX_RECORD)
    assert readers.REGISTRY_TOPIC == protected_topics.REGISTRY
    assert readers.FEATURES_TOPIC == protected_topics.FEATURES
    assert (authentication.REGISTRY_LABEL.decode(), authentication.FEATURES_LABEL.decode()) == (REGISTRY, FEATURES)
    assert authentication.SIGNATURE_HEADER == HEADER


@pytest.mark.promise(
    "jobs.md",
    "A job registers with the levels that it reads, and counts while it does not run, a backfill only while it runs.",
)
def test_a_run_and_a_backfill_write_what_sidecars_write() -> None:
    features = {AUDIT_EVENT_SCHEMA: SupportedRange(1, 2)}
    software = metadata.version("brokerside")
    run = AuditReader("tables-1a2b", "run", started=7)
    assert run.key == records.reader_key("tables-1a2b") == b"reader/tables-1a2b"
    for state in ("running", "stopped"):
        expected = ReaderRecord(features, durable=True, state=state, job="run", started=7, software=software)
        assert run.value(state) == records.encode(expected)
        assert records.decode_reader(run.value(state)) == expected
    backfill = AuditReader("backfill-1a2b", "backfill", started=8)
    assert backfill.value("running") == records.encode(
        ReaderRecord(features, durable=False, state="running", job="backfill", started=8, software=software)
    )
    assert run.value("running") == (
        b'{"features":{"brokerside.audit.event.schema":{"min_version":1,"max_version":2}},"durable":true,'
        b'"state":"running","job":"run","started":7,"software":"%b","version":1}' % software.encode()
    )


@pytest.mark.promise("jobs.md", "The default name of a job in the registry is `tables-` and a hash of its tables.")
def test_a_name_is_that_of_the_tables_or_one_that_sidecars_read() -> None:
    name = default_name("tables", "/data/brokerside")
    assert name == "tables-325a7ab4"
    assert name != default_name("tables", "/data/other")
    for accepted in (name, "a", "Eu.west_1-x", "x" * 128):
        assert records.reader_of_key(AuditReader(accepted, "run").key) == accepted
    for refused in ("", "a b", "a/b", "ä", "x" * 129, "a\n"):
        with pytest.raises(JobError, match=r"--reader: .* is no name of a reader \(allowed: 1–128 of A-Z"):
            AuditReader(refused, "run")
        assert records.reader_of_key(b"reader/" + refused.encode()) is None
    assert "secret" not in repr(AuditReader("a", "run", {"k1": b"secret" * 6}))


def finalized(
    level: int = 2, minimum: int = 1, *, pending: int | None = None, name: str = FEATURE, **changes: int
) -> bytes:
    about = None if pending is None else PendingUpdate("0" * 32, {name: FinalizedRange(1, pending)})
    return records.encode(
        FinalizedFeatures(
            **{"epoch": 4, "features": {name: FinalizedRange(minimum, level)}, "pending": about, **changes}
        )
    )


def edited(**changes: object) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(finalized(3)) | changes)


def test_what_no_sidecar_writes_is_passed_over() -> None:
    levels = {"max_version_level": 3}
    for malformed in (
        finalized(3, version=2), finalized(3, minimum=4), edited(version="1"), edited(epoch=-1), edited(features=[]),
        edited(features={FEATURE: levels}), edited(features={FEATURE: levels | {"min_version_level": 0}}),
        edited(features={FEATURE: levels | {"min_version_level": True}}),
        edited(pending={"update": "", "features": {"x": levels | {"min_version_level": 4}}}),
        finalized(3)[:-1], b"", b"\xff", b"[" * 100_000, finalized(3) + b" " * MAX_RECORD,
    ):  # fmt: skip
        assert records.decode(FEATURES_KEY, malformed) is None, (malformed[:100], "sidecars pass it over, too")
        check_levels([malformed])
        with pytest.raises(JobError, match="finalized at 3"):
            check_levels([finalized(3), malformed])


@pytest.mark.promise(
    "jobs.md", "A job ends before it reads an event if a level above its own is finalized or about to be."
)
def test_a_level_above_the_job_refuses_it() -> None:
    for accepted in (
        [], [finalized(2, 2)], [finalized(1, pending=2)], [finalized(3), finalized(2)], [finalized(3), None],
        [finalized(2, pending=3), finalized(2)], [finalized(3, name="brokerside.coordinator.protocol")],
        [finalized(3), finalized(3, status=0)], [edited(features={})],
    ):  # fmt: skip
        check_levels(accepted)
    is_at_3 = "is finalized at 3"
    for values, how in (
        ([finalized(3)], is_at_3), ([finalized(4, 2)], "is finalized at 4"),
        ([None, finalized(2), finalized(3)], is_at_3), ([finalized(3, version=0, minimum=3)], is_at_3),
        ([finalized(2, pending=3)], "is about to be finalized at 3"), ([finalized(3, pending=2)], is_at_3),
        ([edited(later_field={"a": 1})], is_at_3),
    ):  # fmt: skip
        with pytest.raises(JobError) as refused:
            check_levels(values)
        assert str(refused.value) == f"{FEATURE} {how}, this job reads up to 2: run a newer release", values


OLD, NEW = {"old": b"o" * 32}, {"new": b"n" * 100}
"""The second is longer than a block of SHA-256."""

RECORD = (None, b'{"schema_level":1}')
SIGNED = Authenticator(AUDIT, OLD).header(*RECORD)[1]

CASES = [
    (RECORD, [Authenticator(AUDIT, OLD).header(*RECORD)], None),
    (RECORD, [Authenticator(AUDIT, NEW).header(*RECORD)], None),
    (RECORD, [("trace", b"x"), (HEADER, b"forged"), (HEADER, SIGNED), ("span", None)], None),
    ((b"key", b"\0\xff"), [Authenticator(AUDIT, OLD).header(b"key", b"\0\xff")], None),
    ((None, None), [Authenticator(AUDIT, OLD).header(None, None)], None),
    ((b"", b""), [Authenticator(AUDIT, OLD).header(b"", b"")], None), (RECORD, None, "unsigned"),
    (RECORD, [], "unsigned"), (RECORD, [("trace", SIGNED)], "unsigned"), (RECORD, [(HEADER, None)], "unsigned"),
    (RECORD, [(HEADER, SIGNED), (HEADER, None)], "unsigned"), (RECORD, [(HEADER, b"")], "unknown_key"),
    (RECORD, [(HEADER, b"old")], "unknown_key"), (RECORD, [(HEADER, b"old" + bytes(32))], "unknown_key"),
    (RECORD, [Authenticator(AUDIT, {"other": OLD["old"]}).header(*RECORD)], "unknown_key"),
    (RECORD, [(HEADER, b"old:" + bytes(32))], "bad_signature"),
    (RECORD, [(HEADER, b"new:" + SIGNED[-32:])], "bad_signature"),
    (RECORD, [Authenticator("brokerside-registry/1", OLD).header(*RECORD)], "bad_signature"),
    (RECORD, [Authenticator(AUDIT, OLD).header(b"", RECORD[1])], "bad_signature"),
    ((b"key", RECORD[1]), [(HEADER, SIGNED)], "bad_signature"),
    ((None, RECORD[1] + b" "), [(HEADER, SIGNED)], "bad_signature"),
]  # fmt: skip
"""Key and value of a record, its headers, and why it is refused."""


@pytest.mark.promise(
    "audit-delivery.md", "With keys a job accepts exactly the records that a sidecar with these keys has signed."
)
def test_what_the_sidecar_would_accept_is_accepted() -> None:
    assert authentication.SIGNATURE_LABEL.decode() == AUDIT
    for record, headers, refused in CASES:
        of_kafka = None if headers is None else [{"key": name, "value": content} for name, content in headers]
        assert authentication.refusal(OLD | NEW, *record, of_kafka) == refused, (record, headers)
        verdict = Authenticator(AUDIT, OLD | NEW).verify(*record, headers)
        assert verdict == (refused or "authentic"), (record, headers)
