"""Who may write the registry: large records, records of brokers that there are not, and records nobody has signed.

And that sidecars sign those of the audit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.client import BrokerMetadataClient
from proxy.config.hmac_keys import AUDIT, REGISTRY
from proxy.core.authentication import HEADER, Authenticator, read_keys
from proxy.core.protected_topics import REGISTRY as TOPIC
from proxy.fleet.sidecar_record import SidecarRecord, encode, record_key
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.metrics import sample
from tests.integration.sidecars import config_of, running, until
from tests.integration.topics import described_by
from tests.tools.topic import create, messages

pytestmark = pytest.mark.kafka

MIB = 1 << 20
LARGEST_BATCH = 10 * MIB
"""Bytes of the longest compressed batch that the broker here takes."""

OLD, NEW = "old:" + 32 * "o", "new:" + 32 * "n"


@pytest.fixture
def state(cluster: ClusterState) -> Iterator[ClusterState]:
    """The registry was made by somebody else: it takes more than a new one, and keeps what is compressed as it is."""
    config = {"cleanup.policy": "compact", "compression.type": "producer", "message.timestamp.type": "LogAppendTime"}
    config["max.message.bytes"] = str(LARGEST_BATCH)
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})

    def delete() -> None:
        if TOPIC in admin.list_topics(timeout=30).topics:
            admin.delete_topics([TOPIC])[TOPIC].result(180)

    delete()
    create(admin, NewTopic(TOPIC, 1, 1, config=config))
    described_by(cluster, TOPIC)
    yield cluster
    delete()


class Running:
    """A sidecar, and somebody who writes its registry at the broker."""

    def __init__(self, state: ClusterState, process: SidecarProcess) -> None:
        self._state = state
        self._process = process

    def write(self, records: list[tuple[bytes, bytes]], headers: Any = None, **settings: Any) -> list[str]:
        """Produce them; return the names of the errors."""
        errors: list[str] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error.name())

        bounds = {"message.max.bytes": 1_000_000_000, "batch.size": 1_000_000_000, "linger.ms": 500}
        producer = Producer({"bootstrap.servers": self._state.internal_bootstrap, **bounds, **settings})
        for key, value in records:
            producer.produce(TOPIC, value, key, headers=headers, on_delivery=delivered)
        assert producer.flush(30) == 0
        return errors

    def dropped(self, reason: str) -> float:
        return sample(self._process.metrics(), "brokerside_registry_records_dropped_total", reason=reason)

    def until_dropped(self, reason: str, count: int) -> None:
        until(lambda: self.dropped(reason) >= count)

    def until_logged(self, event: str) -> None:
        """A line of the log is written after what it is about has been counted."""
        until(lambda: f'"{event}"' in self._process.log.read_text())

    def until_bounded(self) -> None:
        """The topic of somebody else's making has the limits of a new one.

        The controller has taken them before the broker goes by them.
        """
        self.until_logged("topic_bounded")
        until(lambda: self.write([spoofed(1000 + n, LARGE) for n in range(20)], **{"compression.type": "gzip"}))

    def peak(self) -> int:
        """Most bytes that were resident since the last call."""
        proc = Path(f"/proc/{self._process.process.pid}")
        found = re.search(r"^VmHWM:\s+(\d+) kB$", (proc / "status").read_text(), re.MULTILINE)
        (proc / "clear_refs").write_text("5")
        return int(found[1]) * 1024


@contextmanager
def attacked(state: ClusterState, folder: Path, settings: Mapping[str, Any]) -> Iterator[Running]:
    with running(config_of(state.nodes[0], **settings), folder) as process:
        yield Running(state, process)


def spoofed(node_id: int, tags: Mapping[str, str]) -> tuple[bytes, bytes]:
    record = SidecarRecord({"CLIENT": "PLAINTEXT"}, ("CLIENT://127.9.9.9:9",), "127.9.9.9", 9, "1", tags=tags)
    return record_key(node_id), encode(record)


LARGE = {f"t{n}": "x" * 1000 for n in range(100)}
"""Tags of a record of 100 KB, which compresses to nothing."""


@pytest.mark.promise(
    "security.md",
    "Whoever writes the registry makes no sidecar hold much: records of other brokers are dropped, large ones refused.",
)
def test_no_record_becomes_large_in_a_reader(state: ClusterState, tmp_path: Path) -> None:
    """300 sidecars that there are not, 30 MB in some kilobytes: an existing topic is bounded as a new one is."""
    with attacked(state, tmp_path, {}) as sidecar:
        sidecar.until_bounded()
        before = sidecar.peak()
        for codec in ("zstd", "gzip"):
            errors = sidecar.write([spoofed(1000 + n, LARGE) for n in range(300)], **{"compression.type": codec})
            assert set(errors) == {"MSG_SIZE_TOO_LARGE"}
        one_by_one = {"batch.num.messages": 1, "compression.type": "zstd"}
        assert sidecar.write([spoofed(1000 + n, LARGE) for n in range(300)], **one_by_one) == []
        sidecar.until_dropped("unknown_broker", 300)
        assert sidecar.peak() - before < 16 * MIB
    with attacked(state, tmp_path, {}) as sidecar:  # beside what is there already
        sidecar.until_dropped("unknown_broker", 200)  # others are too much, until the brokers are known
        assert sidecar.peak() < 128 * MIB


@pytest.mark.promise(
    "security.md",
    "With keys only signed records count, of the registry and of the audit; keys are changed without a gap.",
)
@pytest.mark.slow
def test_what_nobody_has_signed_is_ignored_while_keys_are_rotated(state: ClusterState, tmp_path: Path) -> None:
    """What one run has signed with the old key, the next run accepts with both."""
    keys = tmp_path / "keys"
    node, bootstrap = state.nodes[0], state.internal_bootstrap
    signed = {"registry": {"hmac.keys.file": "keys"}}
    keys.write_text(OLD)
    with attacked(state, tmp_path, signed), BrokerMetadataClient(node.advertised) as client:
        assert [one.node_id for one in client.brokers()] == [1]
    keys.write_text(f"{NEW}\n{OLD}\n")
    audit = {"workers": 2, "audit": {"hmac.keys.file": "keys", "topic": "signed"}}
    audit["observer.shutdown.timeout.ms"] = 20_000  # what is to be delivered at the end has no spool
    with attacked(state, tmp_path, signed | audit) as sidecar:
        record = spoofed(1, {})
        forged = {
            "unsigned": None,
            "unknown_key": [Authenticator(REGISTRY, read_keys("other:" + 32 * "x")).header(*record)],
            "bad_signature": [Authenticator(AUDIT, read_keys(NEW)).header(*record)],
        }
        for reason, headers in forged.items():
            before = sidecar.dropped(reason)
            assert sidecar.write([record], headers) == []
            sidecar.until_dropped(reason, before + 1)
        sidecar.until_logged("registry_records_dropped")
        for stranger, line in ((spoofed(7, {}), OLD), (spoofed(8, {}), NEW)):
            assert sidecar.write([stranger], [Authenticator(REGISTRY, read_keys(line)).header(*stranger)]) == []
        sidecar.until_dropped("unknown_broker", 2)
        assert [sidecar.dropped(reason) for reason in ("unknown_key", "bad_signature")] == [1, 1]
        with BrokerMetadataClient(node.advertised) as client:
            assert [one.node_id for one in client.brokers()] == [1]
    new = Authenticator(AUDIT, read_keys(NEW))
    found = list(messages(bootstrap, "signed"))
    assert len({json.loads(message.value() or b"")["boot_id"] for message in found}) == 2
    for message in found:
        assert new.verify(message.key(), message.value(), message.headers()) == "authentic"
    keys.write_text(NEW)
    signers = [dict(one.headers() or []).get(HEADER, b"").partition(b":")[0] for one in messages(bootstrap, TOPIC)]
    assert b"old" in signers
    with attacked(state, tmp_path, signed) as sidecar:
        sidecar.until_dropped("unknown_key", signers.count(b"old") + signers.count(b"other"))
