"""The table of mistakes in an update, and what the controller changes by itself."""

from typing import Any

import pytest

from proxy.features import updates
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, BROKER_METADATA, COORDINATOR_PROTOCOL, QUOTA_IP, LevelRange
from proxy.features.participants import Participant
from proxy.features.records import FeatureUpdate, FinalizedRange
from proxy.features.updates import UpdateRefused, check, common_levels, raised_minimums
from tests.unit.features.fleets import SUPPORTED, finalized, reader, sidecar, to

FIRST_SENTENCE = "The update failed for all features since the following feature had an error: FEATURE_UPDATES_FAILED: "


def checked(*asked, at=2, low=1, fleet=None, api_version=1, unsafe=None) -> dict[str, FinalizedRange]:
    return check(
        asked,
        finalized(at, low),
        [sidecar(1), sidecar(2)] if fleet is None else fleet,
        api_version=api_version,
        supported={**SUPPORTED, BROKER_METADATA: LevelRange(1, 1)},
        unsafe_to_leave=unsafe or {},
    )


def refusal(*asked: FeatureUpdate, **others: object) -> str:
    with pytest.raises(UpdateRefused) as caught:
        checked(*asked, **others)
    text = str(caught.value)
    assert text.startswith(FIRST_SENTENCE)
    return text.removeprefix(FIRST_SENTENCE)


NONE_SUCH = f"no such feature (there are: {AUDIT_EVENT_SCHEMA}, {BROKER_METADATA}, {QUOTA_IP})"
STORED = "what needs level 2 stops or is lost at level"
WITHOUT = Participant("sidecar/2", "0.0.9", {}, running=True)
STOPPED_READER = Participant("reader/a", "", {AUDIT_EVENT_SCHEMA: LevelRange(2, 2)}, running=False)
DEAD = "cannot be asked; start it, or brokerside features forget"
AWAY = [sidecar(1), sidecar(2, running=False), reader("nightly", 3, running=False)]

A, DOWN = AUDIT_EVENT_SCHEMA, "a safe or unsafe downgrade (upgrade type 2 or 3)"
OLDER = [sidecar(1), sidecar(2, 2), sidecar(3, 1), reader("tables-3f9a1c20", 2)]
LOWER_AWAY = [sidecar(1), sidecar(2, 2, running=False), reader("nightly", 2, running=False)]
UNSAFE = {"unsafe": {A: 2}}

REFUSALS: list[tuple[list[FeatureUpdate], dict[str, Any], str]] = [
    ([to(3), to(3)], {}, f"{A}: is named twice"),
    ([to(1, feature="brokerside.none")], {}, f"brokerside.none: {NONE_SUCH}"),
    ([to(1, feature="brokerside.")], {}, f"brokerside.: {NONE_SUCH}"),
    *(([to(0, kind)], {}, f"{A}: upgrade type {kind} (allowed: 1, 2, 3)") for kind in (0, 4, 7, -1)),
    *(([to(3, kind)], {}, f"{A}: upgrade type {kind} (allowed: 1, 2, 3)") for kind in (0, 4, 7, -1)),
    ([to(1)], {}, f"{A}: is at 2; to go down to 1 ask for {DOWN}"),
    *(
        ([to(level, kind)], {"api_version": version}, f"{A}: a downgrade to {level} {text}")
        for kind in (2, 3)
        for version in (0, 1)
        for level, text in ((3, "can not be greater than existing 2"), (2, "changes nothing: is at 2 already"))
    ),
    ([to(1, 2, BROKER_METADATA)], {}, f"{BROKER_METADATA}: is not finalized, so that there is nothing to down"),
    ([to(2)], {"api_version": 0}, f"{A}: is at 2 already"),
    *(([to(level)], {}, f"{A}: level {level} deletes it: this needs {DOWN}") for level in (0, -1, -32_768)),
    ([to(0, 2, BROKER_METADATA)], {}, f"{BROKER_METADATA}: is not finalized, so that there is nothing to delete"),
    ([to(1, 2)], {"low": 2, "at": 3}, f"{A}: level 1 is deprecated (minimum 2)"),
    ([to(3)], {"fleet": OLDER}, (f"{A}: sidecar 2 (0.1.0) supports 1 to 2, sidecar 3 (0.1.0) supports 1 to 1, reader "
     "tables-3f9a1c20 supports 1 to 2; asked: 3")),
    ([to(3)], {"fleet": [sidecar(1), WITHOUT]}, f"{A}: sidecar 2 (0.0.9) does not support it; asked: 3"),
    ([to(3)], {"fleet": LOWER_AWAY}, (
     f"{A}: sidecar 2 (0.1.0) supports 1 to 2 (does not run since 2023-11-14T22:13:20Z; "
     "brokerside features forget sidecar/2), reader nightly supports 1 to 2 (does not run since 1970-01-01T00:00:00Z; "
     "brokerside features forget reader/nightly); asked: 3")),
    ([to(1, 2)], {"fleet": [sidecar(1), sidecar(2, low=2)]}, f"{A}: sidecar 2 (0.1.0) supports 2 to 3; asked: 1"),
    ([to(1, 3)], {"fleet": [STOPPED_READER]}, f"{A}: reader a supports 2 to 2 (does not run since"),
    ([to(3)], {"fleet": AWAY}, f"{A}: sidecar 2 does not run and {DEAD} sidecar/2"),
    ([to(3)], {"fleet": [*AWAY, sidecar(3, running=False)]}, f"{A}: sidecar 2, sidecar 3 do not run and cannot"),
    ([to(1, feature=BROKER_METADATA)], {"fleet": AWAY}, f"{BROKER_METADATA}: sidecar 1 (0.1.0) does"),
    ([to(1, 2)], UNSAFE, f"{A}: {STORED} 1; an unsafe downgrade (upgrade type 3) accepts that"),
    ([to(0, 2)], UNSAFE, f"{A}: {STORED} 0"),
    ([to(3), to(2, feature=QUOTA_IP)], {}, f"{QUOTA_IP}: sidecar 1"),
    ([to(1, feature="brokerside." + "x" * 30_000)], {}, "brokerside." + "x" * 53 + "…: no such feature"),
    ([to(1, feature="brokerside.\n\ud800")], {}, "brokerside.\\n\\ud800: no such feature"),
]  # fmt: skip
"""What is asked, of whom, and how the refusal begins."""


@pytest.mark.promise(
    "features.md",
    "A refused update names the feature, the reason, and each sidecar and reader that does not support the level.",
)
def test_what_is_refused_and_why() -> None:
    for asked, of, text in REFUSALS:
        assert refusal(*asked, **of).startswith(text), (asked, of)
    assert refusal(to(3), to(1, feature="metadata.version")) == (
        "features of brokers and of sidecars cannot be updated in one request: metadata.version"
    )
    many = [to(1, feature=f"brokerside.{number}") for number in range(101)]
    assert refusal(*many) == "101 features in one request (allowed: 100)"
    text = refusal(to(3), fleet=[sidecar(number, 2) for number in range(13)])
    assert text.count("supports") == 10
    assert text.endswith("sidecar 9 (0.1.0) supports 1 to 2 and 3 more; asked: 3")
    for time in (-1, 2**63 - 1):  # that cannot be
        fleet = [sidecar(1, 2, running=False)._replace(last_seen_ms=time)]
        assert "does not run since" in refusal(to(3), fleet=fleet), time


@pytest.mark.promise("features.md", "The coordinator's feature is disabled with --unsafe alone: groups need it.")
def test_the_feature_of_the_coordinator_is_deleted_only_by_an_unsafe_downgrade() -> None:
    before = {COORDINATOR_PROTOCOL: FinalizedRange(1, 2)}
    with pytest.raises(UpdateRefused, match="what needs level 1 stops or is lost at level 0"):
        check([to(0, 2, COORDINATOR_PROTOCOL)], before, [])
    assert check([to(0, 3, COORDINATOR_PROTOCOL)], before, []) == {}
    assert check([to(1, 2, COORDINATOR_PROTOCOL)], before, []) == {COORDINATOR_PROTOCOL: FinalizedRange(1, 1)}


@pytest.mark.promise(
    "features.md", "All updates of one request are made, or none; a sidecar that does not run blocks no downgrade."
)
def test_what_is_changed() -> None:
    unsafe = {AUDIT_EVENT_SCHEMA: 2}
    late = [sidecar(1), sidecar(2, low=2, running=False)]
    with_metadata = [Participant("sidecar/1", "", {BROKER_METADATA: LevelRange(1, 1)}, running=True)]
    for asked, of, expected in (
        ([to(2)], {}, finalized(2)),
        ([to(3), to(0, 2, QUOTA_IP)], {}, {AUDIT_EVENT_SCHEMA: FinalizedRange(1, 3)}),
        ([to(3)], {"low": 2}, finalized(3, 2)),  # a raise keeps the minimum
        ([to(-1, 2)], {"fleet": [sidecar(1, running=False)]}, {QUOTA_IP: FinalizedRange(1, 1)}),
        ([to(1, 2)], {"fleet": late}, finalized(1)),
        ([to(1, 2)], {"fleet": AWAY}, finalized(1)),
        ([to(1, 3)], {"unsafe": unsafe}, finalized(1)),
        ([to(2, 2)], {"at": 3, "unsafe": unsafe}, finalized(2)),
        ([to(3)], {"unsafe": unsafe}, finalized(3)),
        (
            [to(1, feature=BROKER_METADATA)],
            {"fleet": with_metadata},
            {**finalized(2), BROKER_METADATA: FinalizedRange(1, 1)},
        ),
    ):
        assert checked(*asked, **of) == expected, (asked, of)
    old = {"brokerside.old": FinalizedRange(1, 1)}
    assert check([to(0, 2, "brokerside.old")], old, [sidecar(1)], supported=SUPPORTED) == {}, "also an unknown one"
    fleet = [sidecar(1), reader("tables", 3)]  # readers do not take part in what they do not read
    everything = check([to(1, feature=QUOTA_IP)], {}, fleet, supported=SUPPORTED)
    assert everything == {QUOTA_IP: FinalizedRange(1, 1)}


def test_a_new_fleet_begins_with_the_highest_level_that_all_support() -> None:
    assert common_levels(SUPPORTED, [sidecar(1), sidecar(2, 2), reader("a", 3)]) == finalized(2)
    assert common_levels(SUPPORTED, [sidecar(1), reader("a", 1, running=False)]) == finalized(1)
    assert common_levels(SUPPORTED, [sidecar(1, 1), sidecar(2, 3, low=2)]) == {QUOTA_IP: FinalizedRange(1, 1)}
    assert common_levels(SUPPORTED, [sidecar(1), Participant("sidecar/2", "", {}, running=False)]) == {}
    assert common_levels(SUPPORTED, []) == {}


def test_minimums_rise_once_everybody_supports_them() -> None:
    low = {AUDIT_EVENT_SCHEMA: 2, QUOTA_IP: 1, BROKER_METADATA: 1}
    assert raised_minimums(finalized(3), low, [sidecar(1)]) == (finalized(3, 2), None)
    assert raised_minimums(finalized(2), low, [sidecar(1)]) == (finalized(2, 2), None)
    assert raised_minimums(finalized(1), low, [sidecar(1)]) == (finalized(1), None), "the maximum is below"
    assert raised_minimums(finalized(3, 3), low, [sidecar(1)]) == (finalized(3, 3), None), "it never falls"
    assert raised_minimums(finalized(3), low, [sidecar(1), reader("a", 1)]) == (
        finalized(3),
        f"{AUDIT_EVENT_SCHEMA}: reader a supports 1 to 1; minimum of this release: 2",
    )


@pytest.mark.promise("features.md", "The answer to an update comes after 20 seconds at the latest.")
def test_how_long_an_update_may_take() -> None:
    for timeout, wait in [(-1, 0), (0, 0), (500, 500), (60_000, 20_000)]:
        assert updates.wait_ms(timeout) == wait, (timeout, wait)
