"""Tags, and what a sidecar answers itself, in the configuration."""

import re
from pathlib import Path

import pytest

from proxy.config import Endpoint, load, redacted
from proxy.config.difference import differences
from proxy.config.keys import format_path, reloadable
from proxy.config.serialization import pack, unpack
from proxy.errors import ConfigError
from proxy.interceptors.tags import TAGS_BY_NAME

MINIMAL = """\
broker.id: 1
listeners:
  - {name: CLIENT, bind: "127.0.0.1:9092", upstream: "127.0.0.1:19092"}
  - {name: OTHER, bind: "127.0.0.1:9093", upstream: "127.0.0.1:19093", unsupported.request.response: forward}
"""


@pytest.fixture
def loaded(tmp_path):
    def loaded(more: str = "", text: str = MINIMAL, **environ: str):
        path: Path = tmp_path / "sidecar.yaml"
        path.write_text(text + more)
        return load(path, environ)

    return loaded


@pytest.fixture
def problems(loaded):
    def problems(*args: str, **environ: str) -> list[str]:
        with pytest.raises(ConfigError) as raised:
            loaded(*args, **environ)
        return raised.value.problems

    return problems


def test_defaults(loaded):
    config = loaded()

    assert config.tags == {}
    assert config.broker_version is None
    assert config.private_api_key_base == 30_000
    assert config.broker_metadata_before_authentication is False
    assert config.metadata_watch_ms == 1000
    assert [one.unsupported_request_response for one in config.listeners] == ["empty", "forward"]
    assert [one.rewrite_addresses for one in config.listeners] == [False, False]


def test_tags_stand_alone_as_in_a_broker_s_properties_or_together(loaded):
    config = loaded("tag.aws.zone: eu-central-1\ntags: {cluster: kafka3}\ntag.rack: r8a9\n")

    assert config.tags == {"aws.zone": "eu-central-1", "cluster": "kafka3", "rack": "r8a9"}
    assert redacted(config)["tags"] == config.tags
    assert unpack(pack(config)) == config


def test_lines_of_a_broker_s_properties_are_taken_as_they_are(loaded):
    lines = "tag.aws.zone = eu-central-1\ntag.rack=r8a9\r\ntag.cluster =kafka3  \n"

    config = loaded(lines + "quotas: {max.connections: 5}\ntag.last = 1.10")

    tags = {"aws.zone": "eu-central-1", "rack": "r8a9", "cluster": "kafka3", "last": "1.10"}
    assert config.tags == tags
    assert config.quotas.max_connections == 5
    assert config == loaded(
        "tags: {aws.zone: eu-central-1, rack: r8a9, cluster: kafka3, last: 1.10}\nquotas: {max.connections: 5}\n"
    )


@pytest.mark.parametrize("written", ["a: b", "a # b", '"a"', "a=b", "\\u0041\\", "[a", "- a", "{a: b}", "ä", "&a", "%"])
def test_such_a_line_has_the_text_behind_the_equals_sign(loaded, written):
    assert loaded(f"tag.x = {written}\n").tags == {"x": written}


def test_such_a_line_may_be_empty_or_come_first(loaded):
    assert loaded(text=f"tag.x =\n{MINIMAL}").tags == {"x": ""}


def test_elsewhere_it_is_no_tag(loaded, problems):
    assert loaded("tags:\n  x: |\n    tag.y = z\n").tags == {"x": "tag.y = z\n"}
    (only,) = problems("tags:\n  tag.x = y\n")
    assert only.startswith("tags: ")


def test_mistakes_in_such_lines_have_their_place(problems):
    (twice,) = problems("tags: {rack: a}\ntag.rack = b\n")
    assert twice == "tag.rack: is given twice (allowed: once, here or as rack under tags) at line 6, column 1"
    (twice,) = problems("tag.rack = a\ntag.rack = b\n")
    assert twice == "tag.rack: is given twice (allowed: once) at lines 5 and 6"
    (name,) = problems("tag.a$b = c\n")
    assert "tags.a$b" in name or "tag.a$b" in name
    (builtin,) = problems("tag.broker.id = 9\n")
    assert builtin.endswith("at line 5, column 1")
    (long,) = problems(f"tag.x = {'a' * 2000}\n")
    assert long.startswith("tag.x: ")


@pytest.mark.parametrize("written", ["1.10", "0x1F", "yes", "007", "2026-01-01", "null", "1_000", "a b"])
def test_a_tag_is_the_text_that_was_written(loaded, written):
    assert loaded(f"tag.x: {written}\n").tags == {"x": written}
    assert loaded(f"tags: {{x: {written}}}\n").tags == {"x": written}
    assert loaded(BROKERSIDE_TAGS=f"{{x: {written}}}").tags == {"x": written}


@pytest.mark.parametrize("name", [*TAGS_BY_NAME, "sidecar.features", "brokerside.features.epoch"])
def test_the_name_of_a_builtin_tag_is_no_user_s(problems, name):
    rest = "is the name of a built-in tag, or reserved for one (allowed: a name that docs/tags.md does not have)"

    assert problems(f"tag.{name}: 9\n") == [f"tag.{name}: {rest} at line 5, column 1"]
    assert problems(f"tags:\n  {name}: 9\n") == [f"tags.{name}: {rest} at line 6, column 3"]


def test_mistakes_of_tags(problems):
    (twice,) = problems("tags: {rack: a}\ntag.rack: b\n")
    assert twice == "tag.rack: is given twice (allowed: once, here or as rack under tags) at line 6, column 1"
    (nested,) = problems("tag.rack: {a: b}\n")
    assert nested.startswith("tag.rack: the value is not text (allowed: up to 100 tags")
    assert nested.endswith("at line 5, column 1")
    (name,) = problems("tag.: b\n")
    assert "'' is not a tag's name" in name
    (long,) = problems(f"tag.rack: {'x' * 1025}\n")
    assert "has more than 1024 characters" in long
    (many,) = problems("".join(f"tag.t{number}: x\n" for number in range(101)))
    assert many.startswith("tags: the value holds more than 100 tags (allowed: up to 100 tags with")


def test_what_is_said_for_all_listeners_holds_for_those_without_their_own(loaded, problems):
    config = loaded("unsupported.request.response: close\n")

    assert [one.unsupported_request_response for one in config.listeners] == ["close", "forward"]
    (wrong,) = problems("unsupported.request.response: ignore\n")
    allowed = "(allowed: empty, close or forward)"
    assert wrong == f"unsupported.request.response: 'ignore' is not known {allowed} at line 5, column 1"


def test_what_a_running_sidecar_takes_over(loaded):
    running = loaded()
    wanted = loaded(
        "tag.rack: b\nunsupported.request.response: close\nunsupported.request.max.consecutive: 50\n"
        "broker.version: 4.3.1\nprivate.api.key.base: 20000\n"
        "broker.metadata.before.authentication: true\nmetadata.watch.ms: 500\n"
    )

    found = {format_path(one.path): reloadable(one.path) for one in differences(running, wanted)}

    assert found == {
        "tags.rack": True,
        "unsupported.request.response": True,
        "unsupported.request.max.consecutive": True,
        "listeners[0].unsupported.request.response": True,
        "broker.version": True,
        "private.api.key.base": False,
        "broker.metadata.before.authentication": True,
        "metadata.watch.ms": True,
    }


class TestRewriting:
    def test_has_addresses_by_node_id(self, loaded):
        text = MINIMAL.replace(
            "forward}", 'forward, rewrite.addresses: true, rewrite.addresses.map: {2: "b:9", 3: "c:9"}}'
        )

        config = loaded("", text)

        assert config.listeners[1].rewrite_addresses_map == {2: Endpoint("b", 9), 3: Endpoint("c", 9)}
        assert unpack(pack(config)) == config

    @pytest.mark.parametrize(
        ("settings", "problem"),
        [
            ("rewrite.addresses.map: {2: 'b:9'}", "map: is given, and rewrite.addresses is not true (allowed: both"),
            (
                "rewrite.addresses: true, rewrite.addresses.map: {1: 'b:9'}",
                "map.1: is this sidecar's own broker (allowed",
            ),
            (
                "rewrite.addresses: true, rewrite.addresses.map: {x: 'b:9'}",
                "map.x: 'x' is no broker's id (allowed: node",
            ),
            (
                "rewrite.addresses: true, rewrite.addresses.map: {2: b}",
                "map.2: 'b' is not host:port (allowed: node ids",
            ),
            (
                "rewrite.addresses: true, security.protocol: SSL",
                "addresses: true is not possible with security.protocol: SSL and no tls, which passes as bytes",
            ),
        ],
    )
    def test_mistakes(self, problems, settings, problem):
        (found,) = problems("", MINIMAL.replace("forward}", f"forward, {settings}}}"))

        assert found.startswith("listeners[1].rewrite.addresses")
        assert problem in found
        assert re.search(r" at line 4, column \d+$", found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tag.rack", "a\\ud800"),
        ("broker.version", "4.3\\udfff"),
        ("internal", '{client.id: "\\ud800"}'),
    ],
)
def test_text_is_what_utf_8_has(problems, key, value):
    (found,) = problems(f"{key}: {value}\n" if value.startswith("{") else f'{key}: "{value}"\n')

    assert "holds a character that UTF-8 does not have (allowed: " in found
