"""Real clients log in through a sidecar to a real broker: each of their requests has the principal, and the
software, that the broker itself has for it."""

import base64
import json
import struct
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.core.principal_tracker import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.brokers import SHORT_LOGIN_MS, SharedBroker
from tests.frames import METADATA
from tests.integration import recorder
from tests.integration.logins import (
    ALICE,
    SECRET,
    USERS,
    Own,
    bare_tokens,
    java,
    librdkafka,
    run_java,
    unsecured,
)
from tests.integration.recorder import RECORDER, Recorded
from tests.integration.sidecars import running, until
from tests.sasl import Scram, bearer, plain

pytestmark = pytest.mark.kafka

REAUTHENTICATED = "SCRAM-SHA-512"
"""Whose logins last for ``SHORT_LOGIN_MS``."""

SASL = (SASL_HANDSHAKE, SASL_AUTHENTICATE)


Known = tuple[int, int, str, str, str]


def known(api_key: int, correlation_id: int, principal: str, name: str | None, version: str | None) -> Known:
    """Who is known to have sent a request. The broker logs the first ApiVersions without the software that it names."""
    if api_key == API_VERSIONS:
        return api_key, correlation_id, principal, "", ""
    return api_key, correlation_id, principal, name or "unknown", version or "unknown"


def recorded_as(one: Recorded) -> Known:
    return known(one.api_key, one.correlation_id, one.principal, *one.software)


@dataclass
class Site:
    """A broker with SASL that logs requests, and a sidecar before it at ``bootstrap``."""

    bootstrap: str
    broker: SharedBroker
    file: Path

    def recorded(self, client_id: str) -> list[Recorded]:
        """What the observer got about the connections of a client."""
        recorded = recorder.read(self.file)
        ours = {one.connection for one in recorded if one.client_id == client_id}
        return [one for one in recorded if one.connection in ours]

    def ended(self, client_id: str) -> list[Recorded]:
        """The same, once all of these connections have ended; of a client that will not open another one."""

        def have_ended() -> bool:
            recorded = self.recorded(client_id)
            opened = sum((one.what == "opened") - (one.what == "closed") for one in recorded)
            return bool(recorded) and recorded[-1].what == "closed" and not opened

        until(have_ended)
        return self.recorded(client_id)

    def agrees(self, client_id: str) -> bool:
        """Whether the observer got all that the broker answered to this client, as the broker knows it."""
        recorded = [
            one for one in self.recorded(client_id) if one.what == "exchange" and one.source != "unauthenticated"
        ]
        through = [one for one in recorded if one.api_key not in SASL]  # which the broker does not log
        answered = Counter(recorded_as(one) for one in through if one.answered)
        # A client may leave with a request on its way: the broker answers that or not.
        logged = self.known_to_the_broker(client_id)
        return bool(answered) and answered <= logged <= Counter(map(recorded_as, through))

    def known_to_the_broker(self, client_id: str) -> Counter[Known]:
        """The same of the broker's own request log."""
        lines = [line for line in self.broker.log().splitlines() if "Completed request:" in line and client_id in line]
        logged = [json.loads(line.split("request:", 1)[1].removesuffix(" (kafka.request.logger)")) for line in lines]
        mine = [one for one in logged if one["requestHeader"]["clientId"] == client_id]
        return Counter(
            known(
                one["requestHeader"]["requestApiKey"], one["requestHeader"]["correlationId"], one["principal"],
                *one["clientInformation"].values(),
            )
            for one in mine
            if not one["isForwarded"]  # those are the broker's, for it
        )  # fmt: skip


@pytest.fixture(scope="module")
def site(secured, tmp_path_factory):
    folder = tmp_path_factory.mktemp("principals")
    listener = secured.listeners["LOGINS"]
    config = {
        "broker.id": 1,
        "observer.class.names": [RECORDER],
        "internal.bootstrap.servers": secured.node.internal,
        "log.level": "debug",
        "listeners": [
            {"name": "SASL", "bind": listener.advertised, "upstream": listener.address}
            | {"security.protocol": "SASL_PLAINTEXT"}
        ],
        "admin": {"bind": secured.node.admin},
    }
    file = folder / "recorded.jsonl"
    with secured.logging("kafka.request.logger"), running(config, folder, **{recorder.FILE: str(file)}) as sidecar:
        yield Site(listener.advertised, secured, file)
    assert "canary" not in sidecar.log.read_text() + file.read_text()


@pytest.fixture
def client_id():
    return f"c-{uuid.uuid4().hex[:8]}"


def agrees_with_the_broker(site: Site, client_id: str, principal: str, mechanism: str) -> None:
    """The observer got each request that the broker has answered to this client, as the broker knows it."""
    until(lambda: site.agrees(client_id))
    recorded = site.ended(client_id)
    assert {one.principal for one in recorded if one.what == "exchange"} == {principal, "User:ANONYMOUS"}, client_id
    before = [one for one in recorded if one.source == "unauthenticated"]
    assert {one.principal for one in before} == {"User:ANONYMOUS"}, client_id
    assert {one.api_key for one in before if one.what == "exchange"} <= {*SASL, API_VERSIONS}, client_id
    logins = [one for one in recorded if one.what == "authenticated"]
    assert {one.connection for one in logins} == {one.connection for one in recorded}, client_id
    assert {(one.principal, one.source, one.mechanism) for one in logins} == {(principal, "sasl", mechanism)}
    assert not [one for one in recorded if one.what == "authentication_failed"], client_id
    kept = {one.api_key for one in recorded if one.kept != (None, None)}
    assert METADATA in kept, client_id
    assert SASL_AUTHENTICATE not in kept, client_id


@pytest.mark.promise(
    "principals.md",
    "Every event of a request has the principal that the broker has agreed to, for PLAIN, SCRAM and OAUTHBEARER.",
)
@pytest.mark.parametrize("client", [librdkafka, bare_tokens, pytest.param(java, marks=pytest.mark.slow)])
def test_a_client_is_who_the_broker_says(site, client):
    for mechanism, user in USERS.items():
        client_id = f"{mechanism}-{uuid.uuid4().hex[:8]}"
        client(site.bootstrap, client_id, mechanism)
        agrees_with_the_broker(site, client_id, f"User:{user}", mechanism)


@pytest.mark.promise(
    "principals.md", "The owner of a delegation token is unknown to the sidecar: such a client is `User:<unknown:…>`."
)
def test_a_delegation_token(site, client_id):
    with Own(site.bootstrap, client_id) as client:
        assert client.begin("PLAIN") == 0
        assert client.wrapped(plain("bob", SECRET)) == (0, b"")
        answer = client.ask(38, 1, struct.pack(">iq", 0, -1))
    assert answer[:2] == b"\0\0"
    strings = answer[2:]
    for _ in range(2):  # whose it is
        strings = strings[2 + int.from_bytes(strings[:2], "big") :]
    strings = strings[24:]  # its times
    length = int.from_bytes(strings[:2], "big")
    token_id, rest = strings[2 : 2 + length].decode(), strings[2 + length :]
    key = base64.b64encode(rest[4 : 4 + int.from_bytes(rest[:4], "big")]).decode()
    other = f"{client_id}-with-the-token"

    def log_in():
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
    assert {principal for _, _, principal, *_ in until(lambda: site.known_to_the_broker(other))} == {"User:bob"}


def failed(site: Site, client_id: str, name: str, mechanism: str, error_code: int) -> None:
    recorded = site.ended(client_id)
    changes = [one for one in recorded if one.what in {"authenticated", "authentication_failed"}]
    assert [(one.what, one.principal, one.source, one.mechanism, one.error_code) for one in changes] == [
        ("authentication_failed", f"User:{name}", "unauthenticated", mechanism, error_code)
    ]
    assert {one.principal for one in recorded if one not in changes} == {"User:ANONYMOUS"}, client_id


@pytest.mark.promise(
    "principals.md",
    "A login that the broker refuses gives `authentication_failed` with its error code, and lets nobody in.",
)
def test_a_login_that_fails(site, client_id):
    with Own(site.bootstrap, of_plain := f"{client_id}-plain") as client:
        assert client.begin("PLAIN") == 0
        assert client.wrapped(plain("alice", "canary-wrong"))[0] == 58
    failed(site, of_plain, "alice", "PLAIN", 58)
    with Own(site.bootstrap, of_scram := f"{client_id}-scram") as client:
        assert client.begin("SCRAM-SHA-256") == 0
        scram = Scram("SCRAM-SHA-256", ALICE, "canary-wrong")
        assert client.wrapped(scram.final(client.wrapped(scram.first)[1]))[0] == 58
    failed(site, of_scram, ALICE, "SCRAM-SHA-256", 58)
    with Own(site.bootstrap, bare := f"{client_id}-bare") as client:
        assert client.begin("PLAIN", 0) == 0
        with pytest.raises(ConnectionError):
            client.bare(plain("alice", "canary-wrong"))
    failed(site, bare, "alice", "PLAIN", 0)
    with Own(site.bootstrap, of_bearer := f"{client_id}-bearer") as client:
        assert client.begin("OAUTHBEARER") == 0
        error_code, answer = client.wrapped(bearer(unsecured("carol", -60.0)))
        assert (error_code, json.loads(answer)["status"]) == (0, "invalid_token")
        assert client.wrapped(b"\x01")[0] == 58
    failed(site, of_bearer, "carol", "OAUTHBEARER", 58)
    with Own(site.bootstrap, of_none := f"{client_id}-none") as client:
        assert client.begin("GSSAPI") == 33
    failed(site, of_none, "<unknown:GSSAPI>", "GSSAPI", 33)
    with Own(site.bootstrap, of_two := f"{client_id}-two") as client:
        assert client.begin("OAUTHBEARER") == 0
        assert client.wrapped(bearer(unsecured("victim", -60.0)))[1]
        assert client.wrapped(bearer(unsecured("mallory"))) == (0, b"")
        client.metadata()
    agrees_with_the_broker(site, of_two, "User:mallory", "OAUTHBEARER")


@pytest.mark.promise(
    "principals.md", "A client that logs in again as another one is refused by the broker, and keeps its principal."
)
def test_re_authentication_as_oneself_and_as_another(site, client_id):
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


@pytest.mark.slow
@pytest.mark.promise(
    "principals.md",
    "Each new login of a connection gives one more event `authenticated`, with the time that the broker lets it last.",
)
def test_a_java_client_that_logs_in_again(site, client_id):
    run_java(
        site.bootstrap, client_id, REAUTHENTICATED,
        "producer-perf", "--topic", client_id, "--num-records", "130", "--record-size", "10", "--throughput", "10",
        "--bootstrap-server", site.bootstrap,
    )  # fmt: skip
    agrees_with_the_broker(site, client_id, f"User:{ALICE}", REAUTHENTICATED)
    logins = [one for one in site.recorded(client_id) if one.what == "authenticated"]
    assert {one.lifetime_ms for one in logins} == {SHORT_LOGIN_MS}
    assert max(Counter(one.connection for one in logins).values()) > 1
