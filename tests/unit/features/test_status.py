"""What a sidecar shows of the participants."""

from __future__ import annotations

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP, LevelRange
from proxy.features.participants import Participant
from proxy.features.records import SupportedRange
from proxy.features.status import status_of

OWN = {AUDIT_EVENT_SCHEMA: LevelRange(1, 2), QUOTA_IP: LevelRange(1, 1)}
OLDER = {AUDIT_EVENT_SCHEMA: LevelRange(1, 1)}


def test_which_features_a_participant_keeps_from_being_raised() -> None:
    lacks = "supports 1 to 1, not 2"
    assert {
        (name, running): dict(status_of(Participant(name, "0.1.0", supported, running), OWN).blocks)
        for name, supported, running in (
            ("sidecar/1", OWN, True),
            ("sidecar/2", OWN, False),
            ("sidecar/3", OLDER, True),
            ("sidecar/4", OLDER, False),
            ("reader/a", OWN, False),
            ("reader/b", OLDER, True),
        )
    } == {
        ("sidecar/1", True): {},
        ("sidecar/2", False): {AUDIT_EVENT_SCHEMA: "does not run", QUOTA_IP: "does not run"},
        ("sidecar/3", True): {AUDIT_EVENT_SCHEMA: lacks, QUOTA_IP: "does not support it"},
        ("sidecar/4", False): {AUDIT_EVENT_SCHEMA: lacks, QUOTA_IP: "does not support it"},
        ("reader/a", False): {},
        ("reader/b", True): {AUDIT_EVENT_SCHEMA: lacks},
    }


def test_what_is_shown_of_a_participant() -> None:
    shown = status_of(Participant("sidecar/1", "0.1.0", OLDER, True, applied_epoch=7, last_seen_ms=5), OWN)
    assert (shown.name, shown.release, shown.running) == ("sidecar/1", "0.1.0", True)
    assert (shown.applied_epoch, shown.last_seen) == (7, 5)
    assert shown.supported == {AUDIT_EVENT_SCHEMA: SupportedRange(1, 1)}
