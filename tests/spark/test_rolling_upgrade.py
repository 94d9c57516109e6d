"""From one level of the audit to the next and back: three brokers and sidecars, clients, and a job that runs."""

import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from observers.event import decoder
from proxy.features.catalog import AUDIT_EVENT_SCHEMA
from proxy.features.records import FEATURES_KEY, FinalizedFeatures, decode
from proxy.local import workload
from proxy.local.broker import AUDIT_TOPIC
from proxy.local.workload import ClientLedger
from spark_jobs.errors import QueryError
from spark_jobs.query import query
from tests.integration.feature_fleet import BROKERSIDE, FeatureFleet, feature_fleet, wait_until
from tests.integration.feature_sidecars import committed_messages
from tests.spark.conftest import FEW_ROWS
from tests.tools.topic import messages

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

OLDER = ("-m", "tests.tools.older_release", f"{AUDIT_EVENT_SCHEMA}=1-1", "--")
"""Sidecars, jobs and the command of the release before, which knows level 1 alone."""

TOPIC = "orders"
READER = "tables"  # the name of the job, of either release, in the registry; its tables are below it
JOB_TIMEOUT = 240.0


class Job:
    """``brokerside jobs run`` over the fleet's audit, until it is stopped."""

    def __init__(self, fleet: FeatureFleet, program: Sequence[str] = BROKERSIDE, reader: str = READER) -> None:
        conf = [f"--conf={key}={value}" for key, value in FEW_ROWS.items()]
        self.log = fleet.folder / f"job-{time.monotonic_ns()}.log"
        command = [sys.executable, *program, "jobs", "run", "--bootstrap-server", fleet.state.internal_bootstrap]
        command += ["--tables", str(fleet.folder / reader), "--only", "traffic,dead_letters", "--reader", reader]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*command, "--master", "local[1]", *conf], stdout=log, stderr=log)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(JOB_TIMEOUT)


def command(fleet: FeatureFleet, *arguments: str, program: Sequence[str] = BROKERSIDE) -> tuple[int, str]:
    run = [sys.executable, *program, "features", arguments[0], fleet.address(1), *arguments[1:]]
    done = subprocess.run(run, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, done.stdout + done.stderr


def reader_supports(fleet: FeatureFleet, highest: int) -> bool:
    """Whether the job is registered as running, and supports levels up to ``highest``."""
    return supported(fleet, f"reader/{READER}") == [highest] * len(fleet.sidecars)


def supported(fleet: FeatureFleet, name: str) -> list[int]:
    """The highest level of a participant that runs, as each sidecar knows it: any of them may be the controller."""
    found = [one for asked in fleet.sidecars for one in fleet.status(asked)["participants"]]
    found = [one for one in found if one["name"] == name and one["running"]]
    return [one["supported"][AUDIT_EVENT_SCHEMA]["max_version"] for one in found]


def produced(fleet: FeatureFleet, client_id: str) -> ClientLedger:
    return workload.confluent_produce(fleet.state.bootstrap, client_id, TOPIC, 600, {"enable.idempotence": "true"})


@contextmanager
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    try:
        yield started
    finally:
        for job in started:
            job.process.kill()
            job.process.wait()


def levels_written(fleet: FeatureFleet) -> dict[int, list[tuple[int, int]]]:
    """Level and time (ms) of each record of the audit, by broker."""
    found = defaultdict(list)
    for message in messages(fleet.state.internal_bootstrap, AUDIT_TOPIC):
        envelope = decoder.decode(message.value() or b"")
        found[envelope.broker_id].append((envelope.schema_level, message.timestamp()[1]))
    return found


def finalized_at(fleet: FeatureFleet) -> list[tuple[int, int, int]]:
    """Epoch, level of the audit's schema, and time (ms, the broker's), of each change."""
    found: list[tuple[int, int, int]] = []
    for message in committed_messages(fleet.state.internal_bootstrap):
        record = decode(FEATURES_KEY, message.value() or b"") if message.key() == FEATURES_KEY else None
        if isinstance(record, FinalizedFeatures) and record.epoch > (found[-1][0] if found else 0):
            level = record.features[AUDIT_EVENT_SCHEMA].max_version_level
            found.append((record.epoch, level, message.timestamp()[1]))
    return found


def counted(fleet: FeatureFleet, ledgers: Sequence[ClientLedger]) -> dict[str, int]:
    sql = "SELECT client_id, sum(records)::BIGINT FROM traffic WHERE topic IS NOT NULL AND api = 'Produce' GROUP BY ALL"
    names = {one.client_id for one in ledgers}
    try:
        return {name: records for name, records in query(fleet.folder / READER, sql)[1] if name in names}
    except QueryError:  # there are no tables yet
        return {}


def records_of(ledgers: Sequence[ClientLedger]) -> dict[str, int]:
    return {one.client_id: one.counts["records"] for one in ledgers}


@pytest.mark.promise(
    "features.md", "While the level of the audit changes under load, the tables stay those of all events."
)
@pytest.mark.promise(
    "features.md", "A fleet is raised and lowered while clients and a job work, and no event is lost or counted twice."
)
def test_a_fleet_is_raised_and_lowered_while_clients_and_a_job_work(tmp_path: Path) -> None:
    with feature_fleet(tmp_path / "fleet", audit={"mode": "rollup"}) as fleet, jobs() as started:
        workload.create_topics(fleet.state.internal_bootstrap, {TOPIC: {}}, 3)
        fleet.start(1, 2, 3, program=OLDER)
        with workload.steady_producer(fleet.state.bootstrap, "steady", TOPIC) as finish:
            started.append(Job(fleet, OLDER))
            ledgers = [produced(fleet, "before")]
            wait_until(lambda: fleet.applied() == {1})
            fleet.stop(1)
            fleet.start(1)
            wait_until(lambda: reader_supports(fleet, 1), JOB_TIMEOUT)  # it is slower than all of the above
            code, said = command(fleet, "upgrade-all")
            assert code == 1
            blocking = [f"{one} (0.1.0) supports 1 to 1" for one in ("sidecar 2", "sidecar 3", f"reader {READER}")]
            assert [one in said for one in blocking] == [True, True, True], said
            for broker_id in (2, 3):
                fleet.stop(broker_id)
                fleet.start(broker_id)
            wait_until(lambda: supported(fleet, "sidecar/2") == supported(fleet, "sidecar/3") == [2] * 3)
            code, said = command(fleet, "upgrade-all")
            assert (code, [one in said for one in blocking]) == (1, [False, False, True]), said
            ledgers.append(produced(fleet, "between"))

            wait_until(lambda: counted(fleet, ledgers[:1]) == records_of(ledgers[:1]), JOB_TIMEOUT)
            assert started[0].end() == 0
            started.append(Job(fleet))
            wait_until(lambda: reader_supports(fleet, 2), JOB_TIMEOUT)
            code, said = command(fleet, "upgrade-all")
            assert code == 0, said
            ledgers.append(produced(fleet, "above"))
            wait_until(lambda: all(2 in {level for level, _ in one} for one in levels_written(fleet).values()))
            started.append(late := Job(fleet, OLDER, "late"))
            assert late.process.wait(JOB_TIMEOUT) == 1
            refused = f"{AUDIT_EVENT_SCHEMA} is finalized at 2, this job reads up to 1: run a newer release"
            assert refused in late.log.read_text().splitlines()[-1]
            assert not (fleet.folder / "late").exists(), "it has read nothing"
            code, said = command(fleet, "downgrade-all", program=OLDER)
            assert code == 0, said
            assert len(fleet.applied()) == 1
            ledgers += [produced(fleet, "after"), finish()]
        for broker_id in fleet.sidecars:
            fleet.stop(broker_id)
        wait_until(lambda: counted(fleet, ledgers) == records_of(ledgers), JOB_TIMEOUT)
        assert started[1].end() == 0
        assert query(fleet.folder / READER, "SELECT count(*) FROM dead_letters")[1] == [(0,)]
        sql = "SELECT client_id, sum(topic_requests)::BIGINT FROM traffic WHERE api = 'Produce' GROUP BY ALL"
        found = dict(query(fleet.folder / READER, sql)[1])
        assert {one.client_id: found[one.client_id] for one in ledgers[:-1]} == {
            one.client_id: one.counts["topic_requests"] for one in ledgers[:-1]
        }

        [_, (raised, level, since), (lowered, last, _)] = finalized_at(fleet)
        assert (raised, level, lowered, last) == (2, 2, 3, 1)
        written = levels_written(fleet)
        assert written.keys() == {1, 2, 3}
        for records in written.values():
            higher = [at for level, at in records if level == 2]
            assert higher
            assert min(higher) >= since, "none before the record of its epoch"
            assert all(level == 1 for level, at in records if at < since)
