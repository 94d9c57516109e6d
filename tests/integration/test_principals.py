"""Real clients log in through a sidecar to a real broker: each of their requests has the principal, and the
software, that the broker itself has for it."""

from __future__ import annotations

import base64
import json
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from proxy.core.principal_tracker import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from proxy.local import cluster as local_cluster
from proxy.local.cluster import Node
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.frames import METADATA
from tests.integration import recorder
from tests.integration.logins import (
    ALICE,
    SECRET,
    SECURITY,
    TIMEOUT,
    USERS,
    Own,
    add_scram_user,
    aiokafka,
    bare_tokens,
    java,
    librdkafka,
    run_java,
    unsecured,
)
from tests.integration.quotas import Peer, text
from tests.integration.recorder import RECORDER, Recorded
from tests.sasl import Scram, bearer, plain

pytestmark = pytest.mark.kafka

REAUTHENTICATED = "SCRAM-SHA-512"
LIFETIME_MS = 10_000
"""How long the broker lets a login of that mechanism last."""

BROKER_LOGGER, CREATE_DELEGATION_TOKEN = 8, 38
SASL = (SASL_HANDSHAKE, SASL_AUTHENTICATE)


class Known(NamedTuple):
    """Who is known to have sent a request."""

    api_key: int
    correlation_id: int
    principal: str
    software: str
    version: str

    @classmethod
    def recorded(cls, one: Recorded) -> Known:
        """Of an exchange that the observer got."""
        return cls(one.api_key, one.correlation_id, one.principal, *map(_or_unknown, one.software))._comparable()

    @classmethod
    def logged(cls, one: dict[str, Any]) -> Known:
        """Of an entry in the broker's request log."""
        header, software = one["requestHeader"], one["clientInformation"].values()
        return cls(header["requestApiKey"], header["correlationId"], one["principal"], *software)._comparable()

    def _comparable(self) -> Known:
        """The broker logs the first ApiVersions without the software that it names."""
        return self._replace(software="", version="") if self.api_key == API_VERSIONS else self


def _or_unknown(name: str | None) -> str:
    return name or "unknown"


@dataclass
class Site:
    """A broker with a SASL listener, and a sidecar before it at ``bootstrap``."""

    bootstrap: str
    node: Node
    sidecar: SidecarProcess
    file: Path

    def recorded(self, client_id: str) -> list[Recorded]:
        """What the observer got about the connections of a client."""
        recorded = recorder.read(self.file)
        ours = {one.connection for one in recorded if one.client_id == client_id}
        return [one for one in recorded if one.connection in ours]

    def ended(self, client_id: str) -> list[Recorded]:
        """The same, once all of these connections have ended; of a client that will not open another one."""
        until(lambda: (recorded := self.recorded(client_id)) and recorded[-1].what == "closed" and not _open(recorded))
        return self.recorded(client_id)

    def agrees(self, client_id: str) -> bool:
        """Whether the observer got all that the broker answered to this client, as the broker knows it."""
        recorded = [
            one for one in self.recorded(client_id) if one.what == "exchange" and one.source != "unauthenticated"
        ]
        through = [one for one in recorded if one.api_key not in SASL]  # which the broker does not log
        answered = Counter(Known.recorded(one) for one in through if one.answered)
        # A client may leave with a request on its way: the broker answers that or not.
        logged = self.known_to_the_broker(client_id)
        return bool(answered) and answered <= logged <= Counter(map(Known.recorded, through))

    def known_to_the_broker(self, client_id: str) -> Counter[Known]:
        """The same of the broker's own request log."""
        whole, _, _ = self.node.log.read_text().rpartition("\n")  # the last line may not be there as a whole yet
        lines = [line for line in whole.splitlines() if "Completed request:" in line]
        logged = [json.loads(line.split("request:", 1)[1].removesuffix(" (kafka.request.logger)")) for line in lines]
        mine = [one for one in logged if one["requestHeader"]["clientId"] == client_id]
        return Counter(Known.logged(one) for one in mine if not one["isForwarded"])  # those are the broker's, for it


def until(look: Callable[[], Any]) -> Any:
    """What ``look`` returns once that is true."""
    deadline = time.monotonic() + TIMEOUT
    while not (seen := look()):
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)
    return seen


def _open(recorded: list[Recorded]) -> int:
    return sum((one.what == "opened") - (one.what == "closed") for one in recorded)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("principals")
    node = local_cluster.plan(folder).nodes[0]
    behind, before, admin = (f"127.0.0.1:{port}" for port in free_ports(3))
    listeners = {"CLIENT": node.upstream, "INTERNAL": node.internal, "CONTROLLER": node.controller, "SASL": behind}
    advertised = {"CLIENT": node.advertised, "INTERNAL": node.internal, "SASL": before}
    protocols = dict.fromkeys(listeners, "PLAINTEXT") | {"SASL": "SASL_PLAINTEXT"}
    jaas = "listener.name.sasl.%s.sasl.jaas.config"
    properties = {
        "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "delegation.token.secret.key": "of-the-broker",
        f"listener.name.sasl.{REAUTHENTICATED.lower()}.connections.max.reauth.ms": str(LIFETIME_MS),
        jaas % "plain": f'{SECURITY}.plain.PlainLoginModule required user_alice="{SECRET}" user_bob="{SECRET}";',
        jaas % "scram-sha-256": f"{SECURITY}.scram.ScramLoginModule required;",
        jaas % "scram-sha-512": f"{SECURITY}.scram.ScramLoginModule required;",
        jaas % "oauthbearer": f"{SECURITY}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";',
    }
    try:
        node = local_cluster.up(folder, broker_properties=properties, progress=False).nodes[0]
        _prepare(node, behind)
        yield from _sidecar(folder, node, before, behind, admin)
    finally:
        local_cluster.down(folder)


def _prepare(node: Node, behind: str) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for name in (ALICE, "bob"):
            add_scram_user(node.internal, behind, mechanism, name, SECRET)
    with Peer(node.internal) as peer:
        change = text("kafka.request.logger") + b"\0" + text("DEBUG")
        body = struct.pack(">ib", 1, BROKER_LOGGER) + text("1") + struct.pack(">i", 1) + change + b"\0"
        peer.ask(44, 0, body)


def _sidecar(folder: Path, node: Node, before: str, behind: str, admin: str) -> Iterator[Site]:
    config = {
        "broker.id": 1,
        "internal.bootstrap.servers": node.internal,
        "observer.class.names": [RECORDER],
        "log.level": "debug",
        "listeners": [{"name": "SASL", "bind": before, "upstream": behind, "security.protocol": "SASL_PLAINTEXT"}],
        "admin": {"bind": admin},
    }
    (folder / "sasl.yaml").write_text(yaml.safe_dump(config))
    file = folder / "recorded.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(recorder.FILE, str(file))
        sidecar = SidecarProcess.start(folder / "sasl.yaml", folder / "sasl.log", admin)
    yield Site(before, node, sidecar, file)
    assert sidecar.stop()
    said = (folder / "sasl.log").read_text() + file.read_text()
    assert "canary" not in said


@pytest.fixture
def client_id() -> str:
    return f"c-{uuid.uuid4().hex[:8]}"


def agrees_with_the_broker(site: Site, client_id: str, principal: str, mechanism: str) -> None:
    """The observer got each request that the broker has answered to this client, as the broker knows it."""
    until(lambda: site.agrees(client_id))
    recorded = site.ended(client_id)
    assert {one.principal for one in recorded if one.what == "exchange"} == {principal, "User:ANONYMOUS"}
    before = [one for one in recorded if one.source == "unauthenticated"]
    assert {one.principal for one in before} == {"User:ANONYMOUS"}
    assert {one.api_key for one in before if one.what == "exchange"} <= {*SASL, API_VERSIONS}
    logins = [one for one in recorded if one.what == "authenticated"]
    assert {one.connection for one in logins} == {one.connection for one in recorded}
    assert {(one.principal, one.source, one.mechanism) for one in logins} == {(principal, "sasl", mechanism)}
    assert not [one for one in recorded if one.what == "authentication_failed"]
    kept = {one.api_key for one in recorded if one.kept != (None, None)}
    assert METADATA in kept
    assert SASL_AUTHENTICATE not in kept


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("client", [librdkafka, aiokafka, java, bare_tokens])
def test_a_client_is_who_the_broker_says(
    site: Site, client_id: str, client: Callable[[str, str, str], None], mechanism: str
) -> None:
    client(site.bootstrap, client_id, mechanism)
    agrees_with_the_broker(site, client_id, f"User:{USERS[mechanism]}", mechanism)


def test_a_delegation_token(site: Site, client_id: str) -> None:
    with Own(site.bootstrap, client_id) as client:
        assert client.begin("PLAIN") == 0
        assert client.wrapped(plain("bob", SECRET)) == (0, b"")
        answer = client.ask(CREATE_DELEGATION_TOKEN, 1, struct.pack(">iq", 0, -1))
    assert answer[:2] == b"\0\0"
    strings = answer[2:]
    for _ in range(2):  # whose it is
        strings = strings[2 + int.from_bytes(strings[:2], "big") :]
    strings = strings[24:]  # its times
    length = int.from_bytes(strings[:2], "big")
    token_id, rest = strings[2 : 2 + length].decode(), strings[2 + length :]
    key = base64.b64encode(rest[4 : 4 + int.from_bytes(rest[:4], "big")]).decode()
    other = f"{client_id}-with-the-token"

    def log_in() -> bool:
        with Own(site.bootstrap, other) as client:
            scram = Scram("SCRAM-SHA-256", token_id, key, ",tokenauth=true")
            assert client.begin("SCRAM-SHA-256") == 0
            error_code, answer = client.wrapped(scram.first)
            if error_code or client.wrapped(scram.final(answer))[0]:
                return False  # the broker does not know it yet
            client.metadata()
            return True

    until(log_in)
    recorded = until(lambda: [one for one in site.recorded(other) if one.api_key == METADATA])
    assert [(one.principal, one.source) for one in recorded] == [("User:<unknown:SCRAM-SHA-256 token>", "unknown")]
    assert {one.principal for one in until(lambda: site.known_to_the_broker(other))} == {"User:bob"}


def failed(site: Site, client_id: str, name: str, mechanism: str, error_code: int) -> None:
    """One login has failed, and nobody was let in."""
    recorded = site.ended(client_id)
    changes = [one for one in recorded if one.what in {"authenticated", "authentication_failed"}]
    assert [(one.what, one.principal, one.source, one.mechanism, one.error_code) for one in changes] == [
        ("authentication_failed", f"User:{name}", "unauthenticated", mechanism, error_code)
    ]
    assert {one.principal for one in recorded if one not in changes} == {"User:ANONYMOUS"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password(site: Site, client_id: str, mechanism: str) -> None:
    with Own(site.bootstrap, client_id) as client:
        assert client.begin(mechanism) == 0
        if mechanism == "PLAIN":
            error_code, _ = client.wrapped(plain("alice", "canary-wrong"))
        else:
            scram = Scram(mechanism, ALICE, "canary-wrong")
            error_code, _ = client.wrapped(scram.final(client.wrapped(scram.first)[1]))
        assert error_code == 58
    failed(site, client_id, USERS[mechanism], mechanism, 58)


def test_a_wrong_password_in_a_bare_token(site: Site, client_id: str) -> None:
    with Own(site.bootstrap, client_id) as client:
        assert client.begin("PLAIN", 0) == 0
        with pytest.raises(ConnectionError):
            client.bare(plain("alice", "canary-wrong"))
    failed(site, client_id, "alice", "PLAIN", 0)


def test_a_rejected_bearer_token(site: Site, client_id: str) -> None:
    with Own(site.bootstrap, client_id) as client:
        assert client.begin("OAUTHBEARER") == 0
        error_code, answer = client.wrapped(bearer(unsecured("carol", -60.0)))
        assert (error_code, json.loads(answer)["status"]) == (0, "invalid_token")
        assert client.wrapped(b"\x01")[0] == 58
    failed(site, client_id, "carol", "OAUTHBEARER", 58)


def test_a_bearer_token_after_a_rejected_one(site: Site, client_id: str) -> None:
    with Own(site.bootstrap, client_id) as client:
        assert client.begin("OAUTHBEARER") == 0
        assert client.wrapped(bearer(unsecured("victim", -60.0)))[1]
        assert client.wrapped(bearer(unsecured("mallory"))) == (0, b"")
        client.metadata()
    agrees_with_the_broker(site, client_id, "User:mallory", "OAUTHBEARER")


def test_a_mechanism_that_the_broker_does_not_have(site: Site, client_id: str) -> None:
    with Own(site.bootstrap, client_id) as client:
        assert client.begin("GSSAPI") == 33
    failed(site, client_id, "<unknown:GSSAPI>", "GSSAPI", 33)


def test_re_authentication_as_oneself_and_as_another(site: Site, client_id: str) -> None:
    with Own(site.bootstrap, client_id) as client:
        alice, bob = (Scram(REAUTHENTICATED, name, SECRET) for name in (ALICE, "bob"))
        assert client.log_in(alice, REAUTHENTICATED) == 0
        client.metadata()
        time.sleep(1.1)  # Kafka allows it once a second
        assert client.log_in(alice, REAUTHENTICATED) == 0
        client.metadata()
        time.sleep(1.1)
        assert client.log_in(bob, REAUTHENTICATED) == 58
    recorded = site.ended(client_id)
    changes = [(one.what, one.principal, one.error_code) for one in recorded if one.what.startswith("auth")]
    alice_in = ("authenticated", f"User:{ALICE}", 0)
    assert changes == [alice_in, alice_in, ("authentication_failed", "User:bob", 58)]
    assert {one.principal for one in recorded if one.api_key == METADATA} == {f"User:{ALICE}"}
    assert recorded[-1].principal == f"User:{ALICE}"


def test_a_java_client_that_logs_in_again(site: Site, client_id: str) -> None:
    run_java(
        site.bootstrap, client_id, REAUTHENTICATED,
        "producer-perf", "--topic", client_id, "--num-records", "130", "--record-size", "10", "--throughput", "10",
        "--bootstrap-server", site.bootstrap,
    )  # fmt: skip
    agrees_with_the_broker(site, client_id, f"User:{ALICE}", REAUTHENTICATED)
    logins = [one for one in site.recorded(client_id) if one.what == "authenticated"]
    assert {one.lifetime_ms for one in logins} == {LIFETIME_MS}
    assert max(Counter(one.connection for one in logins).values()) > 1
