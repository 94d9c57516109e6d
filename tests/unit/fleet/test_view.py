"""What clients get about each broker, and where it comes from."""

import re
from pathlib import Path

import pytest

from proxy.config import Config
from proxy.fleet.membership import Member
from proxy.fleet.sidecar_record import SidecarRecord
from proxy.fleet.view import (
    NO_CAPABILITIES,
    OwnBroker,
    brokers_without_sidecar,
    build_fleet_view,
    build_own_record,
    build_own_view,
)
from proxy.interceptors.broker_metadata import FleetView
from proxy.interceptors.tags import (
    BUILTIN_TAGS,
    TAGS_BY_NAME,
    BrokerCapabilities,
    derive_capabilities,
    invalid_tag_names,
    reference_markdown,
)
from proxy.protocol.versions import Supported, ranges, release_ends, release_range, versions_for


def supported(release: str) -> Supported:
    return versions_for(release_range(release))


NEW, OLD = supported("4.3"), supported("3.9")
LISTENERS = [
    {"name": "CLIENT", "bind": "127.0.0.1:9092", "advertised": "kafka-1.example:9092", "upstream": "127.0.0.1:19092"},
    {"name": "TLS", "bind": "[::1]:9093", "upstream": "127.0.0.1:19093", "security.protocol": "SSL"},
]
FULL = OwnBroker(1, derive_capabilities(NEW), "1048588", "MkU3OEVBNTcwNTJENDM2Qg", "r1")


def config(**values: object) -> Config:
    return Config.model_validate({"broker.id": 1, "listeners": LISTENERS, **values})


def reported(tags: dict[str, str], *, alive: bool = True) -> Member:
    ends = ("CLIENT://kafka-2.example:9092",)
    return Member(
        SidecarRecord({}, ends, None, -1, "1", protocol_version_min=40, protocol_version_max=77, tags=tags), alive
    )


def running(view: FleetView) -> list[int]:
    return [one.node_id for one in view.brokers if one.running]


class TestOwn:
    @pytest.mark.promise("tags.md", "BrokerMetadata has the tags of each broker as this page lists them.")
    def test_all_tags(self):
        view = build_own_view(config(tags={"rack": "r8a9"}), FULL)
        assert view.addresses == {"client": ("kafka-1.example", 9092), "tls": ("::1", 9093)}
        assert (view.protocol_min, view.protocol_max, True) == ranges(NEW)
        assert view.tags == {
            "broker.id": "1",
            "broker.version": "4.3.x (inferred)",
            "broker.version.source": "inferred",
            "broker.version.int": "0x04030000",
            "compression.codecs": "1=gzip,2=snappy,3=lz4,4=zstd",
            "message.formats": "v2",
            "protocol.version.exact": "true",
            "message.max.bytes": "1048588",
            "endpoints": "plaintext://kafka-1.example:9092,ssl://[::1]:9093",
            "cluster.id": "MkU3OEVBNTcwNTJENDM2Qg",
            "protocol.version.source": "sidecar",
            "sidecar.version": view.tags["sidecar.version"],
            "rack": "r8a9",
        }
        assert invalid_tag_names(view.tags) == []

    def test_what_is_not_known_is_left_out_and_the_record_says_the_same_to_the_other_sidecars(self):
        view = build_own_view(config(), OwnBroker(1))
        assert (view.protocol_min, view.protocol_max) == (-1, -1)
        assert view.tags.keys() == {"broker.id", "endpoints", "protocol.version.source", "sidecar.version"}
        assert view.tags["protocol.version.source"] == "unknown"
        one = config(tags={"rack": "r8a9"})
        view, record = build_own_view(one, FULL), build_own_record(one, FULL, boot_id="b", started_ms=1579041366882)
        assert record.tags == view.tags
        assert (record.protocol_version_min, record.protocol_version_max) == (view.protocol_min, view.protocol_max)
        assert record.addresses == view.addresses
        assert record.listener_security_protocol_map == {"CLIENT": "PLAINTEXT", "TLS": "SSL"}
        assert (record.rack, record.timestamp, record.metrics_port) == ("r1", "1579041366882", 9644)


class TestPeers:
    mine = build_own_view(config(), FULL)

    def peer(self, seen: Member | None, said: BrokerCapabilities = NO_CAPABILITIES):
        members = {} if seen is None else {2: seen}
        view = build_fleet_view(self.mine, [1, 2], members, {2: said})
        assert view.brokers[0] is self.mine
        return view.brokers[1]

    def test_without_one_the_broker_speaks_for_itself(self):
        peer = self.peer(None, derive_capabilities(OLD))
        assert (peer.protocol_min, peer.protocol_max, True) == ranges(OLD)
        assert peer.tags["protocol.version.source"] == "broker"
        assert peer.tags["broker.version"] == "3.9.x (inferred)"
        assert (peer.tags["sidecar"], peer.addresses) == ("absent", {})
        assert invalid_tag_names(peer.tags) == []
        ended = reported({"rack": "r2", "protocol.version.source": "sidecar"}, alive=False)
        peer = self.peer(ended, derive_capabilities(OLD))
        assert peer.addresses == {"client": ("kafka-2.example", 9092)}, "one that has ended leaves it and its tags"
        assert (peer.tags["rack"], peer.tags["sidecar"]) == ("r2", "absent")
        assert (peer.protocol_min, peer.protocol_max, True) == ranges(OLD)
        view = build_fleet_view(self.mine, [1, 2], None, {})
        assert "sidecar" not in view.brokers[1].tags, "before the registry was read nobody is called absent"

    def test_nobody_s_range_is_taken_for_another_s(self):
        peer = self.peer(reported({"protocol.version.exact": "true"}, alive=False))
        assert (peer.protocol_min, peer.protocol_max) == (-1, -1)
        assert peer.tags["protocol.version.source"] == "unknown"
        assert "protocol.version.exact" not in peer.tags

    @pytest.mark.promise(
        "broker-metadata.md", "A tag that another sidecar has registered in a wrong format is not passed on."
    )
    def test_a_tag_that_is_not_as_documented_is_not_passed_on(self):
        tags = {"message.max.bytes": "many", "endpoints": "x", "rack": "any text", "protocol.version.source": "sidecar"}
        peer = self.peer(reported(tags))
        assert peer.tags == {"broker.id": "2", "rack": "any text", "protocol.version.source": "sidecar"}

    def test_who_runs_is_what_the_cluster_says_and_else_whose_sidecar_does(self):
        seen = {node: reported({}, alive=node != 3) for node in (2, 3, 4)}
        for said, expected in (([3, 5], [1, 3, 5]), (None, [1, 2, 4])):
            view = build_fleet_view(self.mine, said, seen, {})
            assert running(view) == expected, said
            known = {one.node_id: one.addresses for one in view.brokers}
            assert known[2] == {"client": ("kafka-2.example", 9092)}, "one that does not run keeps its address"
        assert running(build_fleet_view(self.mine, None, None, {})) == [1]
        assert brokers_without_sidecar([1, 2, 3], {1: reported({}), 2: reported({}, alive=False)}) == [2, 3]


def test_tags_are_of_the_formats_of_the_page_which_have_one_way_to_match():
    """Two repeats in a row that take the same characters are tried in every combination."""
    page = Path(__file__).parents[3] / "docs" / "tags.md"
    assert page.read_text() == reference_markdown(), "docs/tags.md is out of date: run make docs"
    for tag in BUILTIN_TAGS:
        assert re.fullmatch(tag.grammar, tag.example), tag.name
    for release in release_ends():
        tags = build_own_view(config(), FULL._replace(said=derive_capabilities(supported(release)))).tags
        assert invalid_tag_names(tags) == [], release
        assert tags.keys() <= TAGS_BY_NAME.keys(), release
    assert re.findall(r"[+*]", TAGS_BY_NAME["sidecar.version"].grammar) == ["*"]
    assert invalid_tag_names({"sidecar.version": "0.1.0-dev+d12ca4f"}) == []
    assert invalid_tag_names({"sidecar.version": "1." * 50_000 + " "}) == ["sidecar.version"]
