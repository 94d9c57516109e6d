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
def problem(loaded):
    """Load a text with one mistake, and return it."""

    def problem(*args: str) -> str:
        with pytest.raises(ConfigError) as raised:
            print(args, loaded(*args))
        (only,) = raised.value.problems
        return only

    return problem


@pytest.mark.promise("config/broker.md", "The response to unsupported requests is set for all listeners, or one.")
def test_defaults_and_what_is_said_for_all_listeners(loaded, problem):
    config = loaded()
    assert config.tags == {}
    assert config.broker_version is None
    assert config.private_api_key_base == 30_000
    assert config.broker_metadata_before_authentication is False
    assert config.metadata_watch_ms == 1000
    assert [one.unsupported_request_response for one in config.listeners] == ["empty", "forward"]
    assert [one.rewrite_addresses for one in config.listeners] == [False, False]

    config = loaded("unsupported.request.response: close\n")
    assert [one.unsupported_request_response for one in config.listeners] == ["close", "forward"]
    allowed = "(allowed: empty, close or forward)"
    wrong = f"unsupported.request.response: 'ignore' is not known {allowed} at line 5, column 1"
    assert problem("unsupported.request.response: ignore\n") == wrong


@pytest.mark.promise("tags.md", "Tags stand as in a broker's properties, and keep the text that was written.")
def test_tags_stand_alone_as_in_a_broker_s_properties_or_together(loaded, problem):
    config = loaded("tag.aws.zone: eu-central-1\ntags: {cluster: kafka3}\ntag.rack: r8a9\n")
    assert config.tags == {"aws.zone": "eu-central-1", "cluster": "kafka3", "rack": "r8a9"}
    assert redacted(config)["tags"] == config.tags
    assert unpack(pack(config)) == config

    lines = "tag.aws.zone = eu-central-1\ntag.rack=r8a9\r\ntag.cluster =kafka3  \n"
    config = loaded(lines + "quotas: {max.connections: 5}\ntag.last = 1.10")
    assert config == loaded(
        "tags: {aws.zone: eu-central-1, rack: r8a9, cluster: kafka3, last: 1.10}\nquotas: {max.connections: 5}\n"
    )
    assert config.tags == {"aws.zone": "eu-central-1", "rack": "r8a9", "cluster": "kafka3", "last": "1.10"}
    assert config.quotas.max_connections == 5
    for written in ("a: b", "a # b", '"a"', "a=b", "\\u0041\\", "[a", "- a", "{a: b}", "ä", "&a", "%"):
        assert loaded(f"tag.x = {written}\n").tags == {"x": written}
    assert loaded(text=f"tag.x =\n{MINIMAL}").tags == {"x": ""}, "it may be empty or come first"
    assert loaded("tags:\n  x: |\n    tag.y = z\n").tags == {"x": "tag.y = z\n"}
    assert problem("tags:\n  tag.x = y\n").startswith("tags: "), "elsewhere it is no tag"

    for written in ("1.10", "0x1F", "yes", "007", "2026-01-01", "null", "1_000", "a b"):
        assert loaded(f"tag.x: {written}\n").tags == {"x": written}
        assert loaded(f"tags: {{x: {written}}}\n").tags == {"x": written}
        assert loaded(BROKERSIDE_TAGS=f"{{x: {written}}}").tags == {"x": written}


@pytest.mark.promise("tags.md", "A tag with the name of a built-in one is refused, and so is one too long or too many.")
def test_mistakes_of_tags_have_their_place(problem):
    twice = "tag.rack: is given twice (allowed: once, here or as rack under tags) at line 6, column 1"
    assert problem("tags: {rack: a}\ntag.rack = b\n") == problem("tags: {rack: a}\ntag.rack: b\n") == twice
    assert problem("tag.rack = a\ntag.rack = b\n") == "tag.rack: is given twice (allowed: once) at lines 5 and 6"
    assert "tag.a$b" in problem("tag.a$b = c\n").replace("tags.", "tag.")
    assert problem("tag.broker.id = 9\n").endswith("at line 5, column 1")
    assert problem(f"tag.x = {'a' * 2000}\n").startswith("tag.x: ")
    nested = problem("tag.rack: {a: b}\n")
    assert nested.startswith("tag.rack: the value is not text (allowed: up to 100 tags")
    assert nested.endswith("at line 5, column 1")
    assert "'' is not a tag's name" in problem("tag.: b\n")
    assert "has more than 1024 characters" in problem(f"tag.rack: {'x' * 1025}\n")
    many = problem("".join(f"tag.t{number}: x\n" for number in range(101)))
    assert many.startswith("tags: the value holds more than 100 tags (allowed: up to 100 tags with")
    rest = "is the name of a built-in tag, or reserved for one (allowed: a name that docs/tags.md does not have)"
    for name in (*TAGS_BY_NAME, "sidecar.features", "brokerside.features.epoch"):
        assert problem(f"tag.{name}: 9\n") == f"tag.{name}: {rest} at line 5, column 1"
        assert problem(f"tags:\n  {name}: 9\n") == f"tags.{name}: {rest} at line 6, column 3"


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


@pytest.mark.promise("config/listeners.md", "Addresses are rewritten by node id, and a useless map is refused.")
def test_addresses_are_rewritten_by_node_id(loaded, problem):
    map_of = 'rewrite.addresses: true, rewrite.addresses.map: {2: "b:9", 3: "c:9"}'
    config = loaded("", MINIMAL.replace("forward}", f"forward, {map_of}}}"))
    assert config.listeners[1].rewrite_addresses_map == {2: Endpoint("b", 9), 3: Endpoint("c", 9)}
    assert unpack(pack(config)) == config

    on = "rewrite.addresses: true, "
    bytes_alone = "addresses: true is not possible with security.protocol: SSL and no tls, which passes as bytes"
    for settings, wrong in (
        ("rewrite.addresses.map: {2: 'b:9'}", "map: is given, and rewrite.addresses is not true (allowed: both"),
        (on + "rewrite.addresses.map: {1: 'b:9'}", "map.1: is this sidecar's own broker (allowed"),
        (on + "rewrite.addresses.map: {x: 'b:9'}", "map.x: 'x' is no broker's id (allowed: node"),
        (on + "rewrite.addresses.map: {2: b}", "map.2: 'b' is not host:port (allowed: node ids"),
        (on + "security.protocol: SSL", bytes_alone),
    ):
        found = problem("", MINIMAL.replace("forward}", f"forward, {settings}}}"))
        assert found.startswith("listeners[1].rewrite.addresses")
        assert wrong in found
        assert re.search(r" at line 4, column \d+$", found)
