"""Clients that log in over SASL_PLAINTEXT and ask for something, each in its own way."""

import re
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion  # type: ignore[attr-defined]  # they are exported, untyped

from proxy.core.principal_tracker import SASL_AUTHENTICATE, SASL_HANDSHAKE
from proxy.local import cluster as local_cluster
from tests.frames import METADATA, request, sized
from tests.integration.quotas import Peer
from tests.sasl import Scram, authenticate, bearer, handshake, jwt, plain

TIMEOUT = 60.0
SECURITY = "org.apache.kafka.common.security"
ALICE, SECRET = "al,i=ce", "canary-5e,c=ret"
"""What SCRAM has to escape."""

DECISION = re.compile(
    r"Principal = (?P<principal>\S+) is (?P<decision>Allowed|Denied) operation = (?P<operation>\w+) from host = \S+"
    r" on resource = (?P<type>\w+):LITERAL:(?P<name>\S+) for request = (?P<api>\w+)"
)
"""A line of ``kafka.authorizer.logger``. Denials are INFO, the others DEBUG."""

LOGIN = f"{SECURITY}.plain.PlainLoginModule required"

USERS = {"PLAIN": "alice", "SCRAM-SHA-256": ALICE, "SCRAM-SHA-512": ALICE, "OAUTHBEARER": "carol"}


def librdkafka(bootstrap: str, client_id: str, mechanism: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": client_id, "sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        settings |= {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": "principal=carol extension_traceId=1",
        }
    else:
        settings |= {"sasl.username": USERS[mechanism], "sasl.password": SECRET}
    AdminClient({"security.protocol": "SASL_PLAINTEXT", **settings}).list_topics(timeout=30)


def java(bootstrap: str, client_id: str, mechanism: str) -> None:
    run_java(bootstrap, client_id, mechanism, "topics", "--list", "--bootstrap-server", bootstrap)


def run_java(bootstrap: str, client_id: str, mechanism: str, name: str, *arguments: str) -> None:
    modules = {"PLAIN": "plain.PlainLoginModule", "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule"}
    module = modules.get(mechanism, "scram.ScramLoginModule")
    options = f'username="{USERS[mechanism]}" password="{SECRET}"'
    if mechanism == "OAUTHBEARER":
        options = 'unsecuredLoginStringClaim_sub="carol"'
    settings = {
        "client.id": client_id,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{SECURITY}.{module} required {options};",
    }
    flags = "\n".join(f"{key}={value}" for key, value in settings.items())
    done = subprocess.run(
        [*local_cluster.tool(name, *arguments), "--command-config", "/dev/stdin"],
        input=flags, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


class Own(Peer):
    """A client of ours that logs in as a test says, one thing at a time."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        super().__init__(bootstrap)
        self._client_id = client_id

    def ask(self, key: int, version: int, body: bytes) -> bytes:
        """Return what follows the correlation id of the answer."""
        return self.ask_at_once(key, version, [body])[0]

    def ask_at_once(self, key: int, version: int, bodies: Sequence[bytes]) -> list[bytes]:
        """The same of all ``bodies``, sent before any answer is read."""
        first = self._asked + 1
        for body in bodies:
            self._asked += 1
            self.sock.sendall(request(key, version, self._asked, body, self._client_id))
        return [self._answer(number) for number in range(first, self._asked + 1)]

    def bare(self, token: bytes) -> bytes:
        self.sock.sendall(sized(token))
        return self._read(int.from_bytes(self._read(4), "big"))

    def wrapped(self, token: bytes) -> tuple[int, bytes]:
        """A token in a SaslAuthenticate request; its error code, and the token that answers it."""
        answer = self.ask(SASL_AUTHENTICATE, 0, authenticate(token, 0))
        (error_code,) = struct.unpack_from(">h", answer)
        message = 4 + max(struct.unpack_from(">h", answer, 2)[0], 0)
        return error_code, answer[message + 4 :]

    def begin(self, mechanism: str, version: int = 1) -> int:
        return int.from_bytes(self.ask(SASL_HANDSHAKE, version, handshake(mechanism))[:2], "big")

    def log_in(self, scram: Scram, mechanism: str) -> int:
        """The whole of a SCRAM login; its last error code."""
        assert self.begin(mechanism) == 0
        error_code, answer = self.wrapped(scram.first)
        assert error_code == 0
        return self.wrapped(scram.final(answer))[0]

    def metadata(self) -> None:
        """A request that only a client that is through gets answered."""
        assert len(self.ask(METADATA, 1, struct.pack(">i", 0))) > 10


def add_scram_user(internal: str, address: str, mechanism: str, name: str, password: str) -> None:
    """Add a user of SCRAM over the address ``internal``, and wait until the broker knows it at ``address``: some
    moments after the controller does."""
    info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 4096)
    user = UserScramCredentialUpsertion(name, info, password.encode())
    admin = AdminClient({"bootstrap.servers": internal})  # it has to outlive its call
    admin.alter_user_scram_credentials([user])[name].result(180)
    deadline = time.monotonic() + TIMEOUT
    while True:
        with Own(address, "until-known") as client:
            assert client.begin(mechanism) == 0
            if client.wrapped(Scram(mechanism, name, password).first)[0] == 0:
                return
        assert time.monotonic() < deadline, f"{name} is not known at {address}"
        time.sleep(0.05)


def bare_tokens(bootstrap: str, client_id: str, mechanism: str) -> None:
    with Own(bootstrap, client_id) as client:
        assert client.begin(mechanism, 0) == 0
        if mechanism == "PLAIN":
            assert client.bare(plain("alice", SECRET)) == b""
        elif mechanism == "OAUTHBEARER":
            assert client.bare(bearer(unsecured("carol"))) == b""
        else:
            scram = Scram(mechanism, ALICE, SECRET)
            assert client.bare(scram.final(client.bare(scram.first))).startswith(b"v=")
        client.metadata()


def unsecured(name: str, lasts: float = 600.0) -> str:
    now = time.time()
    return jwt({"sub": name, "iat": now - 3600, "exp": now + lasts}, signature="")


def login(user: str, folder: Path) -> Path:
    """Write and return the file with which Kafka's tools log in as ``user``."""
    path = folder / f"{user}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={LOGIN} username="{user}" password="{user}-secret";\n'
    )
    return path
