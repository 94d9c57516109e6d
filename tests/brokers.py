"""The three brokers of a run, each started when a test first asks for it: plain, with logins and ACLs, and with TLS.

Tests share them, and the sidecars of one module after another stand before them. So topics, groups and client ids have
names of their own, and what is the cluster's (ACLs, default quotas, settings of brokers) is as before when a test ends.
A test that stops a broker and does not start it again, or needs other settings, has a broker of its own.
"""

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are exported, untyped
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from proxy.errors import LocalError
from proxy.local import cluster as local_cluster
from proxy.local.ports import HOST, free_ports
from proxy.local.state import ClusterState, Node
from tests.integration.logins import ALICE, SECRET, SECURITY, add_scram_user
from tests.integration.quotas import ALTER_CONFIGS, Peer, text
from tests.tools.authority import Authority, Pair

USERS = ("admin", "alice", "bob", "guest", "jobs", "operator", "sidecar")
"""Of PLAIN; the password of each is ``NAME-secret``."""

SCRAM_USER, SCRAM_PASSWORD = "s,i=decar", "pä,ss=word"
"""Of ``tls_broker``, with what SCRAM has to escape, and what is not ASCII."""

SHORT_LOGIN_MS, LONGER_LOGIN_MS = 10_000, 60_000
"""How long ``secured`` lets a login last: of SCRAM-SHA-512 on ``LOGINS``, and of PLAIN on ``ENDING``."""

PATIENCE = 60.0
BROKER_LOGGER, SET, DELETE = 8, b"\0", b"\1"


class Listener(NamedTuple):
    """Host:port where a broker listens, and what it advertises: the same, or a free address for a sidecar."""

    address: str
    advertised: str


class Acl(NamedTuple):
    """Allows an operation, from everywhere."""

    principal: str
    operation: AclOperation
    resource: ResourceType
    name: str
    pattern: ResourcePatternType = ResourcePatternType.LITERAL

    def binding(self, kind: Any) -> Any:
        """It as an AclBinding or AclBindingFilter."""
        where = (self.resource, self.name, self.pattern)
        return kind(*where, self.principal, "*", self.operation, AclPermissionType.ALLOW)


@dataclass(frozen=True)
class SharedBroker:
    """One broker, and its listeners by name, beside CLIENT and INTERNAL (``node.upstream`` and ``node.internal``)."""

    state: ClusterState
    listeners: Mapping[str, Listener]

    @property
    def node(self) -> Node:
        return self.state.nodes[0]

    @property
    def folder(self) -> Path:
        return self.node.home.parent

    def admin(self) -> AdminClient:
        """One that may do everything."""
        return AdminClient({"bootstrap.servers": self.node.internal})

    def allow(self, *acls: Acl) -> None:
        """Create ACLs. The controller has them with its response, the broker when it shows them."""
        admin = self.admin()
        for future in admin.create_acls([acl.binding(AclBinding) for acl in acls]).values():
            future.result(PATIENCE)
        _until(lambda: all(_has(admin, acl) for acl in acls))

    def revoke(self, *acls: Acl) -> None:
        """Delete ACLs, all of which are there; see ``allow``."""
        admin = self.admin()
        for future in admin.delete_acls([acl.binding(AclBindingFilter) for acl in acls]).values():
            assert future.result(PATIENCE), "there was no such ACL"
        _until(lambda: not any(_has(admin, acl) for acl in acls))

    def forget_acls(self) -> None:
        """Delete all ACLs."""
        admin = self.admin()
        kinds = ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        everything = AclBindingFilter(*kinds)
        admin.delete_acls([everything])[everything].result(PATIENCE)
        _until(lambda: not admin.describe_acls(everything).result(PATIENCE))

    @contextmanager
    def logging(self, logger: str, level: str = "DEBUG") -> Iterator[None]:
        """Let the broker log more for the block."""
        self._set_logger(SET, logger, level)
        try:
            yield
        finally:
            self._set_logger(DELETE, logger, "")

    def _set_logger(self, operation: bytes, logger: str, level: str) -> None:
        with Peer(self.node.internal) as peer:
            change = text(logger) + operation + text(level or None)
            one = struct.pack(">b", BROKER_LOGGER) + text(str(self.node.id)) + struct.pack(">i", 1) + change
            assert peer.ask(ALTER_CONFIGS, 0, struct.pack(">i", 1) + one + b"\0")[8:10] == b"\0\0"

    def log(self) -> str:
        """All that it has logged, as far as it is kept: in lines that are whole."""
        older = [self.node.log.with_name(f"{self.node.log.name}.{number}") for number in (2, 1)]
        files = [file for file in (*older, self.node.log) if file.exists()]
        return "".join(file.read_text() for file in files).rpartition("\n")[0]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterState]:
    """One node without logins, ACLs or TLS, that advertises its sidecar's address (``nodes[0].advertised``).

    No sidecar runs yet, and none may be assumed to. Its folder has ``sidecar-1.yaml``, with the audit observer. What
    may be compacted is so soon: Kafka looks for it every 15 s.
    """
    folder = tmp_path_factory.mktemp("cluster")
    yield local_cluster.up(folder, broker_properties={"log.cleaner.backoff.ms": "200"}, progress=False)
    local_cluster.down(folder)


@contextmanager
def secured_broker(folder: Path, kafka_version: str = "4.3.1") -> Iterator[SharedBroker]:
    """A broker with Kafka's authorizer, and these listeners with SASL_PLAINTEXT:

    - ``SASL``: PLAIN with ``USERS`` (``alice``: ``alice-secret``); advertises an address that is free for a sidecar
    - ``OWN``: the same, and advertises itself, as for what a sidecar asks Kafka itself
    - ``ENDING``: the same, advertises itself; a login ends after ``LONGER_LOGIN_MS``
    - ``LOGINS``: the users of tests/integration/logins.py, with PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 (a login ends after
      ``SHORT_LOGIN_MS``) and OAUTHBEARER; ``alice`` and ``bob`` (PLAIN), ``ALICE`` and ``bob`` (SCRAM) have the
      password ``SECRET``; advertises an address that is free for a sidecar

    Who does not log in, ``admin``, ``ALICE`` and ``carol`` (OAUTHBEARER) may do everything; the others have no right
    before a test allows something. It has delegation tokens. It logs denials (logins.DECISION).
    """
    addresses = _listeners(("SASL", True), ("OWN", False), ("ENDING", False), ("LOGINS", True))
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "delegation.token.secret.key": "of-the-broker",
        "listener.name.logins.scram-sha-512.connections.max.reauth.ms": str(SHORT_LOGIN_MS),
        "listener.name.ending.plain.connections.max.reauth.ms": str(LONGER_LOGIN_MS),
        **_jaas("logins", "scram-sha-256", "scram.ScramLoginModule"),
        **_jaas("logins", "scram-sha-512", "scram.ScramLoginModule"),
        **_jaas("logins", "plain", f'plain.PlainLoginModule user_alice="{SECRET}" user_bob="{SECRET}"'),
        **_jaas("logins", "oauthbearer", 'oauthbearer.OAuthBearerLoginModule unsecuredLoginStringClaim_sub="broker"'),
        **_authorizer("admin", ALICE, "carol"),
    }
    for name in ("sasl", "own", "ending"):
        settings |= {f"listener.name.{name}.sasl.enabled.mechanisms": "PLAIN", **_plain(name)}
    protocols = dict.fromkeys(addresses, "SASL_PLAINTEXT")
    with _broker(folder, protocols, addresses, settings, kafka_version) as found:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            for user in (ALICE, "bob"):
                add_scram_user(found.node.internal, addresses["LOGINS"].address, mechanism, user, SECRET)
        yield found


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBroker]:
    """The ``secured_broker`` of the run."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as found:
        yield found


@dataclass(frozen=True)
class TlsBroker(SharedBroker):
    """``authority``: signed its certificate, and those of all clients; its folder has ``broker``, ``alice`` and ``bob``
    (of CN=…,OU=Clients,C=DE) as .crt and .key. ``pair``: of CN=sidecar."""

    authority: Authority
    pair: Pair


@pytest.fixture(scope="session")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """A broker whose certificate is for localhost and 127.0.0.1, with Kafka's authorizer, and these listeners:

    - ``TLS``, ``MTLS``, ``SASL_TLS`` (SASL_SSL), ``SASL`` (SASL_PLAINTEXT): for the sidecar's own calls; each
      advertises itself; ``MTLS`` wants a certificate
    - ``BEHIND_SASL`` (SASL_PLAINTEXT), ``BEHIND_SASL_MTLS`` (SASL_SSL) and ``BEHIND_MTLS`` (SSL): advertise addresses
      that are free for a sidecar; the last two want a certificate

    PLAIN has ``USERS`` (``alice-secret``); SCRAM-SHA-256 and SCRAM-SHA-512 have ``SCRAM_USER``, and the latter
    ``alice`` with ``logins.SECRET``. All of them may do everything but ``guest``, and so may who does not log in, and
    the certificates of ``sidecar``, ``alice`` and ``bob``.
    """
    folder = tmp_path_factory.mktemp("tls-broker")
    authority = Authority(folder / "authority")
    store = folder / "broker.pem"
    broker, pair = authority.issue("broker"), authority.issue("sidecar", "CN=sidecar")
    store.write_text(broker.key.read_text() + broker.certificate.read_text())
    clients = [f"CN={name},OU=Clients,C=DE" for name in ("alice", "bob")]
    for name, subject in zip(("alice", "bob"), clients, strict=True):
        authority.issue(name, subject)
    protocols = {"TLS": "SSL", "MTLS": "SSL", "SASL_TLS": "SASL_SSL", "SASL": "SASL_PLAINTEXT"}
    behind = {"BEHIND_SASL": "SASL_PLAINTEXT", "BEHIND_SASL_MTLS": "SASL_SSL", "BEHIND_MTLS": "SSL"}
    addresses = _listeners(*((name, False) for name in protocols), *((name, True) for name in behind))
    protocols |= behind
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        **{f"listener.name.{name.lower()}.ssl.client.auth": "required" for name in protocols if "MTLS" in name},
        **_authorizer(*(name for name in USERS if name != "guest"), SCRAM_USER, "CN=sidecar", *clients),
    }
    for name in (one.lower() for one, protocol in protocols.items() if protocol.startswith("SASL")):
        settings |= _plain(name)
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings |= _jaas(name, mechanism, "scram.ScramLoginModule")
    with _broker(folder, protocols, addresses, settings) as found:
        logins = [(f"SCRAM-SHA-{bits}", SCRAM_USER, SCRAM_PASSWORD) for bits in (256, 512)]
        for login in (*logins, ("SCRAM-SHA-512", "alice", SECRET)):
            add_scram_user(found.node.internal, addresses["SASL"].address, *login)
        yield TlsBroker(found.state, found.listeners, authority, pair)


def _listeners(*named: tuple[str, bool]) -> dict[str, Listener]:
    """By name, and by whether its clients are sent to a sidecar."""
    found = {}
    for name, is_behind in named:
        address, sidecar = (f"{HOST}:{port}" for port in free_ports(2))
        found[name] = Listener(address, sidecar if is_behind else address)
    return found


@contextmanager
def _broker(
    folder: Path,
    protocols: Mapping[str, str],
    addresses: Mapping[str, Listener],
    settings: Mapping[str, str],
    kafka_version: str = "4.3.1",
) -> Iterator[SharedBroker]:
    """Run it for the block."""
    node = local_cluster.plan(folder, kafka_version=kafka_version).nodes[0]
    listening = {"CLIENT": node.upstream, "INTERNAL": node.internal, "CONTROLLER": node.controller}
    advertised = {"CLIENT": node.advertised, "INTERNAL": node.internal}
    of_all = dict.fromkeys(listening, "PLAINTEXT") | dict(protocols)
    listening |= {name: one.address for name, one in addresses.items()}
    advertised |= {name: one.advertised for name, one in addresses.items()}
    properties = {
        "listeners": ",".join(f"{name}://{address}" for name, address in listening.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in of_all.items()),
        "log.cleaner.backoff.ms": "200",
        **settings,
    }
    try:
        state = local_cluster.up(folder, kafka_version=kafka_version, broker_properties=properties, progress=False)
        yield SharedBroker(state, addresses)
    finally:
        local_cluster.down(folder)


def start_again(folder: Path, node_id: int) -> ClusterState:
    """Start a broker of a cluster that runs. It ends, after 60 s, where the controller still has its registration: each
    new controller takes the broker that was killed for one that lives, as long as ``broker.session.timeout.ms``."""
    for _ in range(3):
        try:
            return local_cluster.start_node(folder, node_id)
        except LocalError as error:
            failed = error
    raise failed


def _plain(listener: str) -> dict[str, str]:
    users = " ".join(f'user_{name}="{name}-secret"' for name in USERS)
    return _jaas(listener, "plain", f"plain.PlainLoginModule {users}")


def _jaas(listener: str, mechanism: str, module: str) -> dict[str, str]:
    """``module``: its name, and its options."""
    name, _, options = module.partition(" ")
    return {f"listener.name.{listener}.{mechanism}.sasl.jaas.config": f"{SECURITY}.{name} required {options};"}


def _authorizer(*names: str) -> dict[str, str]:
    """``names``: of those who may do everything, beside those who do not log in."""
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{name}" for name in ("ANONYMOUS", *names)),
    }


def _has(admin: AdminClient, acl: Acl) -> bool:
    return bool(admin.describe_acls(acl.binding(AclBindingFilter)).result(PATIENCE))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the broker has not heard of it"
        time.sleep(0.02)
