"""Records of the features' topic and of readers: what is read of them, and what a controller makes of them."""

from __future__ import annotations

from random import Random

from proxy.features.catalog import SUPPORTED
from proxy.features.controller import BOOTSTRAP_AFTER_MS, FeatureController
from proxy.features.controller_states import FencePredecessor, WriteTransaction
from proxy.features.levels import fleet_levels
from proxy.features.participants import Participant, reader
from proxy.features.records import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    ControllerClaim,
    FeatureUpdate,
    FinalizedFeatures,
    FinalizedRange,
    PendingUpdate,
    ReaderRecord,
    SupportedRange,
    UpdateOutcome,
    UpdateProposal,
    decode,
    decode_reader,
    encode,
    update_key,
)
from tests.fuzz.targets import Target

UPDATE = "0123456789abcdef" * 2
KEYS = [FEATURES_KEY, CONTROLLER_KEY, update_key(UPDATE)]
READER = len(KEYS)
"""The first byte of an input: the place of its key, or that it is a reader's record."""

LAST = str(2**63 - 1).encode()
"""The controller does not count beyond it."""

NAME = "brokerside.audit.event.schema"


def record_seeds() -> list[bytes]:
    levels = {NAME: FinalizedRange(1, 2)}
    proposal = UpdateProposal(1, "boot", 60_000, (FeatureUpdate(NAME, 2), FeatureUpdate("brokerside.\n☃", -1, 7)))
    return [
        b"\0" + encode(FinalizedFeatures(7, levels, None, 3, 1_700_000_000_000)),
        b"\0" + encode(FinalizedFeatures(0, {}, PendingUpdate(UPDATE, levels))),
        b"\0" + encode(FinalizedFeatures(7, levels, PendingUpdate("", levels), status=2, version=2)),
        b"\1" + encode(ControllerClaim(4, 2, "boot")),
        b"\2" + encode(proposal),
        b"\2" + encode(UpdateOutcome(0, None, 8, (1, 2, 3))),
        b"\2" + encode(UpdateOutcome(95, "why")),
        b"\3" + encode(ReaderRecord({NAME: SupportedRange(1, 2)}, True, "stopped", "backfill", 1, "0.1.0")),
    ]


def record_once(data: bytes) -> list[WriteTransaction]:
    """What the next controller writes, once it has read the record."""
    kind, value = (data + b"\0")[0] % (READER + 1), data[1:]
    participants = [Participant("sidecar/1", "0.1.0", SUPPORTED, running=True)]
    if kind == READER:
        found = decode_reader(value)
        job = reader("tables", found, alive=True) if found else None
        participants += [job] if job else []
    controller = FeatureController(1, "boot")
    controller.participants_changed(participants, 0)
    if kind != READER:
        controller.records([(KEYS[kind], value, 1_700_000_000_000)], 0)
    fleet_levels(SUPPORTED, controller.topic.finalized)
    waiting, written = controller.hold(0), []
    while waiting:
        effect = waiting.pop(0)
        if isinstance(effect, FencePredecessor):
            waiting += controller.opened(effect.number, 0)
        elif isinstance(effect, WriteTransaction):
            written.append(effect)
            waiting += controller.written(effect.number, 0)
            read = [(key, each, 1_700_000_000_000) for key, each in effect.records.items()]
            waiting += controller.records(read, 0)
            waiting += controller.tick(BOOTSTRAP_AFTER_MS)
    return written


def check_record(data: bytes, rng: Random) -> None:
    kind, value = (data + b"\0")[0] % (READER + 1), data[1:]
    if kind == READER:
        job = decode_reader(value)
        assert job is None or decode_reader(encode(job)) == job
    else:
        found = decode(KEYS[kind], value)
        assert found is None or decode(KEYS[kind], encode(found)) == found
    for write in record_once(data):
        for key, each in write.records.items():
            assert each is not None
            assert decode(key, each) is not None or LAST in value, "a controller writes what nobody can read"


TARGETS = [Target("features_record", record_seeds, check_record, record_once, share=30)]
