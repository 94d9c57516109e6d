"""The table of mistakes in an update, and what the controller changes by itself."""

from __future__ import annotations

import pytest

from proxy.features import updates
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, BROKER_METADATA, QUOTA_IP, LevelRange
from proxy.features.participants import Participant
from proxy.features.records import FeatureUpdate, FinalizedRange
from proxy.features.updates import UpdateRefused, check, common_levels, raised_minimums
from tests.unit.features.fleets import SUPPORTED, finalized, reader, sidecar, to

FIRST_SENTENCE = "The update failed for all features since the following feature had an error: FEATURE_UPDATES_FAILED: "


def checked(
    *asked: FeatureUpdate,
    at: int = 2,
    low: int = 1,
    fleet: list[Participant] | None = None,
    api_version: int = 1,
    unsafe: dict[str, int] | None = None,
) -> dict[str, FinalizedRange]:
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
        checked(*asked, **others)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith(FIRST_SENTENCE)
    return text.removeprefix(FIRST_SENTENCE)


@pytest.mark.promise("features.md", "Features of brokers and of sidecars cannot be updated in one request.")
def test_1_features_of_brokers_beside_those_of_sidecars() -> None:
    assert refusal(to(3), to(1, feature="metadata.version")) == (
        "features of brokers and of sidecars cannot be updated in one request: metadata.version"
    )


def test_2_the_same_feature_twice() -> None:
    assert refusal(to(3), to(3)) == f"{AUDIT_EVENT_SCHEMA}: is named twice"


@pytest.mark.promise("features.md", "An update of more than 100 features is refused.")
def test_2_too_many_features() -> None:
    asked = [to(1, feature=f"brokerside.{number}") for number in range(101)]
    assert refusal(*asked) == "101 features in one request (allowed: 100)"


def test_3_a_feature_that_nobody_has() -> None:
    for name in ["brokerside.none", "brokerside."]:
        assert refusal(to(1, feature=name)) == (
            f"{name}: no such feature (there are: {AUDIT_EVENT_SCHEMA}, {BROKER_METADATA}, {QUOTA_IP})"
        ), name


def test_3_a_feature_that_is_finalized_can_be_deleted_though_the_controller_does_not_have_it() -> None:
    old = {"brokerside.old": FinalizedRange(1, 1)}
    assert check([to(0, 2, "brokerside.old")], old, [sidecar(1)], supported=SUPPORTED) == {}


def test_4_a_type_that_is_none() -> None:
    for upgrade_type in [0, 4, 7, -1]:
        for level in [0, 2, 3]:
            assert refusal(to(level, upgrade_type)) == (
                f"{AUDIT_EVENT_SCHEMA}: upgrade type {upgrade_type} (allowed: 1, 2, 3)"
            ), upgrade_type


@pytest.mark.promise("features.md", "An upgrade to a lower level is refused: it has to be asked for as a downgrade.")
def test_5_a_downgrade_that_is_not_called_so() -> None:
    assert refusal(to(1)) == (
        f"{AUDIT_EVENT_SCHEMA}: is at 2; to go down to 1 ask for a safe or unsafe downgrade (upgrade type 2 or 3)"
    )


def test_6_a_downgrade_that_is_none() -> None:
    for upgrade_type in [2, 3]:
        for api_version in [0, 1]:
            assert refusal(to(3, upgrade_type), api_version=api_version) == (
                f"{AUDIT_EVENT_SCHEMA}: a downgrade to 3 can not be greater than existing 2"
            ), (upgrade_type, api_version)
            assert refusal(to(2, upgrade_type), api_version=api_version) == (
                f"{AUDIT_EVENT_SCHEMA}: a downgrade to 2 changes nothing: is at 2 already"
            ), (upgrade_type, api_version)
            assert refusal(to(1, upgrade_type, BROKER_METADATA)) == (
                f"{BROKER_METADATA}: is not finalized, so that there is nothing to downgrade to 1"
            ), (upgrade_type, api_version)


def test_7_the_level_that_is_finalized_already() -> None:
    assert refusal(to(2), api_version=0) == f"{AUDIT_EVENT_SCHEMA}: is at 2 already"
    assert checked(to(2)) == finalized(2)


def test_8_a_deletion() -> None:
    for level in [0, -1, -32_768]:
        needs = "this needs a safe or unsafe downgrade (upgrade type 2 or 3)"
        assert refusal(to(level)) == f"{AUDIT_EVENT_SCHEMA}: level {level} deletes it: {needs}", level
        assert refusal(to(level, 2, BROKER_METADATA)) == (
            f"{BROKER_METADATA}: is not finalized, so that there is nothing to delete"
        ), level
        assert checked(to(level, 2), fleet=[sidecar(1, running=False)]) == {QUOTA_IP: FinalizedRange(1, 1)}, level


def test_9_a_level_below_the_minimum() -> None:
    assert refusal(to(1, 2), low=2, at=3) == f"{AUDIT_EVENT_SCHEMA}: level 1 is deprecated (minimum 2)"


@pytest.mark.promise("features.md", "A refused raise names each sidecar and reader that does not support the level.")
def test_10_participants_that_do_not_support_the_level_are_all_named() -> None:
    fleet = [sidecar(1), sidecar(2, 2), sidecar(3, 1), reader("tables-3f9a1c20", 2)]
    assert refusal(to(3), fleet=fleet) == (
        f"{AUDIT_EVENT_SCHEMA}: sidecar 2 (0.1.0) supports 1 to 2, sidecar 3 (0.1.0) supports 1 to 1, "
        "reader tables-3f9a1c20 supports 1 to 2; asked: 3"
    )


def test_10_a_participant_without_the_feature() -> None:
    fleet = [sidecar(1), Participant("sidecar/2", "0.0.9", {}, running=True)]
    assert refusal(to(3), fleet=fleet) == f"{AUDIT_EVENT_SCHEMA}: sidecar 2 (0.0.9) does not support it; asked: 3"


def test_10_what_does_not_run_is_named_with_its_time_and_the_way_out() -> None:
    fleet = [sidecar(1), sidecar(2, 2, running=False), reader("nightly", 2, running=False)]
    assert refusal(to(3), fleet=fleet) == (
        f"{AUDIT_EVENT_SCHEMA}: sidecar 2 (0.1.0) supports 1 to 2 (does not run since 2023-11-14T22:13:20Z; "
        "brokerside features forget sidecar/2), reader nightly supports 1 to 2 (does not run since "
        "1970-01-01T00:00:00Z; brokerside features forget reader/nightly); asked: 3"
    )


def test_10_of_many_participants_ten_are_named() -> None:
    text = refusal(to(3), fleet=[sidecar(number, 2) for number in range(13)])
    assert text.count("supports") == 10
    assert text.endswith("sidecar 9 (0.1.0) supports 1 to 2 and 3 more; asked: 3")


def test_10_readers_do_not_take_part_in_what_they_do_not_read() -> None:
    fleet = [sidecar(1), reader("tables", 3)]
    everything = check([to(1, feature=QUOTA_IP)], {}, fleet, supported=SUPPORTED)
    assert everything == {QUOTA_IP: FinalizedRange(1, 1)}


def test_10_a_downgrade_is_checked_with_what_runs_and_all_readers() -> None:
    fleet = [sidecar(1), sidecar(2, low=2)]
    assert refusal(to(1, 2), fleet=fleet) == f"{AUDIT_EVENT_SCHEMA}: sidecar 2 (0.1.0) supports 2 to 3; asked: 1"
    stopped = Participant("reader/a", "", {AUDIT_EVENT_SCHEMA: LevelRange(2, 2)}, running=False)
    assert "reader a supports 2 to 2" in refusal(to(1, 3), fleet=[stopped])
    assert checked(to(1, 2), fleet=[sidecar(1), sidecar(2, low=2, running=False)]) == finalized(1)


@pytest.mark.promise("features.md", "A sidecar that does not run blocks a raise, and no downgrade.")
def test_11_a_sidecar_that_does_not_run_prevents_a_raise_but_no_downgrade() -> None:
    fleet = [sidecar(1), sidecar(2, running=False), reader("nightly", 3, running=False)]
    assert refusal(to(3), fleet=fleet) == (
        f"{AUDIT_EVENT_SCHEMA}: sidecar 2 does not run and cannot be asked; start it, or brokerside features forget "
        "sidecar/2"
    )
    assert refusal(to(3), fleet=[*fleet, sidecar(3, running=False)]).startswith(
        f"{AUDIT_EVENT_SCHEMA}: sidecar 2, sidecar 3 do not run and cannot be asked; start them, or "
    )
    assert refusal(to(1, feature=BROKER_METADATA), fleet=fleet).startswith(f"{BROKER_METADATA}: sidecar 1 (0.1.0) does")
    assert checked(to(1, 2), fleet=fleet) == finalized(1)


@pytest.mark.promise("features.md", "A downgrade that loses what is stored needs `--unsafe`.")
def test_12_an_unsafe_downgrade_has_to_be_called_so() -> None:
    unsafe = {AUDIT_EVENT_SCHEMA: 2}
    text = f"{AUDIT_EVENT_SCHEMA}: what is stored at level 2 cannot be read at level"
    assert refusal(to(1, 2), unsafe=unsafe) == f"{text} 1; an unsafe downgrade (upgrade type 3) loses it"
    assert refusal(to(0, 2), unsafe=unsafe).startswith(f"{text} 0")
    assert checked(to(1, 3), unsafe=unsafe) == finalized(1)
    assert checked(to(2, 2), at=3, unsafe=unsafe) == finalized(2)
    assert checked(to(3), unsafe=unsafe) == finalized(3)


@pytest.mark.promise("features.md", "All updates of one request are made, or none.")
def test_updates_are_made_all_or_none() -> None:
    assert checked(to(3), to(0, 2, QUOTA_IP)) == {AUDIT_EVENT_SCHEMA: FinalizedRange(1, 3)}
    assert refusal(to(3), to(2, feature=QUOTA_IP)).startswith(f"{QUOTA_IP}: sidecar 1")


def test_a_raise_keeps_the_minimum_and_a_new_feature_begins_at_1() -> None:
    assert checked(to(3), low=2) == finalized(3, 2)
    fleet = [Participant("sidecar/1", "", {BROKER_METADATA: LevelRange(1, 1)}, running=True)]
    assert checked(to(1, feature=BROKER_METADATA), fleet=fleet)[BROKER_METADATA] == FinalizedRange(1, 1)


def test_names_of_a_client_are_shown_in_part_and_without_control_characters() -> None:
    assert refusal(to(1, feature="brokerside." + "x" * 30_000)).startswith("brokerside." + "x" * 53 + "…: no such")
    assert refusal(to(1, feature="brokerside.\n\ud800")).startswith("brokerside.\\n\\ud800: no such feature")


def test_a_time_that_cannot_be_is_no_error() -> None:
    for time in (-1, 2**63 - 1):
        fleet = [sidecar(1, 2, running=False)._replace(last_seen_ms=time)]
        assert "does not run since" in refusal(to(3), fleet=fleet)


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
