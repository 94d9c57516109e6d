import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.apis import APIS
from proxy.protocol.private import BASE, PRIVATE, PrivateApi, moved
from proxy.protocol.versions import (
    TABLE,
    UNKNOWN,
    ProtocolRange,
    floored,
    ranges,
    release_ends,
    release_of,
    release_range,
    version_int,
    versions_for,
)
from tests.cases import each
from tests.tools.record_ranges import recorded

LIVE = recorded()
RELEASES = list(release_ends())
Ranges = dict[int, tuple[int, int]]

every_release = each("release", RELEASES)
every_live_broker = each("version", LIVE)


def number(api_key: int, version: int) -> int:
    [found] = [row.n for row in TABLE if (row.api_key, row.version) == (api_key, version)]
    return found


def pairs(supported: Ranges) -> set[tuple[int, int]]:
    return {(key, version) for key, (low, high) in supported.items() for version in range(low, high + 1)}


@every_live_broker
def test_a_broker_has_the_range_of_its_release_which_says_what_its_api_versions_says(version: str) -> None:
    assert ranges(LIVE[version]) == release_range(version.rpartition(".")[0])
    assert release_of(LIVE[version]) == version.rpartition(".")[0] + ".x"
    assert versions_for(ranges(LIVE[version])) == floored(LIVE[version])
    assert pairs(versions_for(ranges(LIVE[version]))) <= pairs(LIVE[version])


@pytest.mark.promise("protocol.md", "Each release of Kafka has the range of ProtocolVersions that the page gives.")
@every_release
def test_the_range_of_what_a_release_has_is_that_of_the_release(release: str) -> None:
    assert ranges(versions_for(release_range(release))) == release_range(release)


@pytest.mark.promise(
    "protocol.md", "Brokers of 4.0 and later are taken not to have Produce v0 to v2, which they list and refuse."
)
def test_produce_is_what_brokers_of_4_take() -> None:
    assert LIVE["4.3.1"][0] == (0, 13)
    assert floored(LIVE["4.3.1"])[0] == (3, 13)
    assert floored({0: (4, 13), 1: (4, 18)}) == {0: (4, 13), 1: (4, 18)}
    assert floored({0: (0, 13), 1: (3, 18)}) == {0: (0, 13), 1: (3, 18)}
    assert floored({0: (0, 13)}) == {0: (0, 13)}


@pytest.mark.promise(
    "protocol.md",
    "Telemetry, which a broker has with a reporter only, is neither missed in a range nor promised by it.",
)
def test_telemetry_is_neither_missed_nor_promised() -> None:
    with_reporter = {**LIVE["4.3.1"], 71: (0, 0), 72: (0, 0)}
    assert ranges(with_reporter) == ranges(LIVE["4.3.1"])
    assert 71 not in versions_for(ranges(with_reporter))


@pytest.mark.promise(
    "protocol.md", "The sidecars' own apis have ProtocolVersions, and a broker without a sidecar does not lack them."
)
def test_private_apis_count_for_whoever_has_them_and_are_not_missed() -> None:
    last = number(30000, 0)
    assert ranges({**LIVE["4.4.0"], 30000: (0, 0)}) == ranges(LIVE["4.4.0"])._replace(max=last)
    assert ranges({**LIVE["3.9.2"], 30000: (0, 0)}) == ranges(LIVE["3.9.2"])
    assert 30000 not in versions_for(ProtocolRange(1, last, exact=True))


@pytest.mark.promise(
    "protocol.md", "A broker that lacks an addition has the range before it, with `protocol.version.exact=false`."
)
def test_a_broker_with_a_hole_has_the_range_before_it() -> None:
    holed = {key: span for key, span in LIVE["4.3.1"].items() if key != 76}
    found = ranges(holed)
    assert (found.min, found.max) == (number(0, 12), number(76, 1) - 1)
    assert not found.exact
    assert pairs(versions_for(found)) <= pairs(holed)
    # A range that leaves something out is not exact.
    assert ranges({**LIVE["4.4.0"], 10000: (0, 1)}) == ranges(LIVE["4.4.0"])._replace(exact=False)
    unstable = {**LIVE["4.4.0"], 22: (0, 6)}
    assert ranges(unstable) == ranges(LIVE["4.4.0"])._replace(exact=False)
    assert [ranges(none) for none in ({}, {18: (0, 4)}, {10000: (0, 0)})] == [UNKNOWN] * 3
    assert versions_for(UNKNOWN) == {}


SPANS = st.tuples(st.integers(0, 5), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.promise("protocol.md", "A broker's range of ProtocolVersions never promises more than it has.")
@settings(deadline=None)
@given(st.sampled_from(sorted(LIVE)), st.dictionaries(st.sampled_from(sorted(APIS)), st.none() | SPANS, max_size=4))
def test_whatever_a_broker_says_its_range_never_promises_more(
    version: str, other: dict[int, tuple[int, int] | None]
) -> None:
    supported = {key: span for key, span in {**LIVE[version], **other}.items() if span is not None}
    found = ranges(supported)
    assert pairs(versions_for(found)) <= pairs(floored(supported))
    if found != UNKNOWN:
        assert 1 <= found.min <= found.max <= len(TABLE)
        for n in (found.min, (found.min + found.max) // 2):
            assert pairs(versions_for(ProtocolRange(n, n, exact=False))) <= pairs(floored(supported))


@pytest.mark.promise(
    "protocol.md", "A broker's release is inferred from its range where `broker.version` is not configured."
)
@pytest.mark.promise("protocol.md", "3.4 added nothing, and is reported as 3.3.")
def test_a_broker_that_is_like_none_exactly_is_reported_as_the_nearest() -> None:
    assert release_of(versions_for(ProtocolRange(1, release_ends()["3.3"], exact=True))) == "3.3.x"
    assert "3.4" not in release_ends()
    zookeeper = {key: span for key, span in LIVE["3.9.2"].items() if key not in (55, 64, 74, 75, 80, 81)}
    assert release_of({**zookeeper, 4: (0, 7), 5: (0, 4), 6: (0, 8), 7: (0, 3)}) == "3.9.x"
    assert release_of({**LIVE["4.3.1"], 71: (0, 0), 72: (0, 0), 30000: (0, 0)}) == "4.3.x"
    assert release_of({}) is None
    assert release_of({10000: (0, 3)}) is None


@pytest.mark.promise(
    "tags.md", "`broker.version.int` has one byte for each of four components of the broker's version."
)
@each(
    ("text", "number"),
    [
        ("0.9.0.0", 0x00090000),
        ("0.9.0.0-SNAPSHOT-d12ca4f", 0x00090000),
        ("3.9.2", 0x03090200),
        ("4.3.1", 0x04030100),
        ("4.3.x (inferred)", 0x04030000),
        ("7", 0x07000000),
        ("1.2.3.4.5", 0x01020304),
        ("255.255.255.255", 0xFFFFFFFF),
    ],
)
def test_versions_as_numbers(text: str, number: int) -> None:
    assert version_int(text) == number
    for wrong in ("", "x", "-1", ".1", "4.256", "2026.1"):
        with pytest.raises(ValueError, match="allowed are one to four numbers of 0 to 255") as raised:
            version_int(wrong)
        assert repr(wrong) in str(raised.value)


def test_private_apis_move_with_their_base() -> None:
    assert moved(BASE, coordinator=True) == PRIVATE
    assert moved(31000, coordinator=True)[31011] == PrivateApi("StopFetcher", 0, 1)
    assert moved(31000, coordinator=False) == {31000: PrivateApi("BrokerMetadata", 0, 0)}
