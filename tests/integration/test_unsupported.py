"""Requests that a real broker does not support: it closes the connection, the sidecar answers, as configured; on a
listener with SASL only once the client is logged in."""

import os
import signal
import socket
import struct
import threading
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import BinaryIO, NamedTuple

import pytest

from proxy.core.apis import APIS, api_name
from proxy.core.session import TURN
from proxy.local.ports import free_ports
from tests.cases import each
from tests.frames import API_VERSIONS, METADATA, request, response
from tests.integration import recorder
from tests.integration.logins import Own
from tests.integration.metrics import sample
from tests.integration.recorder import RECORDER, Recorded
from tests.integration.sidecars import config_of, running, until
from tests.sasl import plain
from tests.tools.blank import blank

pytestmark = pytest.mark.kafka

FETCH, PRODUCE, OFFSET_COMMIT, ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS = 1, 0, 8, 24, 27
POLICIES = ("empty", "close", "forward")
NO_TOPICS = bytes(4)
REFUSED = [
    (9999, 0), (-5, 0), (32767, 0), (30001, 0), (30000, 1), (95, 0),  # apis that the broker does not know
    (4, 0), (7, 3), (52, 0), (58, 0),  # those of other listeners
    (METADATA, 99), (METADATA, -1), (FETCH, 3), (OFFSET_COMMIT, 0), (METADATA, 32767),  # versions
    (PRODUCE, 0), (PRODUCE, 1), (PRODUCE, 2), (PRODUCE, 99),  # the first are in ApiVersions, and yet refused
]  # fmt: skip


class Site(NamedTuple):
    """A broker, and a sidecar with one listener for each policy before it."""

    direct: str
    through: dict[str, str]


@pytest.fixture(scope="module")
def site(cluster):
    workers, node = 2, cluster.nodes[0]
    without = {"observer.class.names": None, "internal.bootstrap.servers": None}
    through = dict(zip(POLICIES, [node.advertised, *(f"127.0.0.1:{port}" for port in free_ports(2))], strict=True))
    of_all = {"advertised": node.advertised, "upstream": node.upstream}
    listeners = [
        {"name": policy, "bind": address, "unsupported.request.response": policy, **of_all}
        for policy, address in through.items()
    ]
    with running(config_of(node, workers=workers, listeners=listeners, **without), node.home.parent):
        for address in through.values():
            for _ in range(4 * workers):  # each process knows by then what the broker supports
                assert len(converse(address, [versions(1)])) == 1
        yield Site(node.upstream, through)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 60)


def converse(address: str, frames: list[bytes]) -> list[bytes]:
    """Send ``frames`` at once; return as many answers, without their sizes, or those before the end."""

    def send() -> None:
        with suppress(OSError):  # it is closed meanwhile
            sock.sendall(b"".join(frames))

    with connect(address) as sock, sock.makefile("rb") as reader:
        threading.Thread(target=send, daemon=True).start()
        found: list[bytes] = []
        while len(found) < len(frames):
            try:
                found.append(answer(reader))
            except (ConnectionResetError, EOFError):  # it may have had more to read when it closed
                break
        return found


def answer(reader: BinaryIO) -> bytes:
    """The next frame, without its size."""
    if not (head := reader.read(4)):
        raise EOFError
    return reader.read(int.from_bytes(head, "big"))


def versions(correlation_id: int) -> bytes:
    return request(API_VERSIONS, 0, correlation_id)


def ids(answers: list[bytes]) -> list[int]:
    return [int.from_bytes(answer[:4], "big") for answer in answers]


def supported(address: str) -> dict[int, tuple[int, int]]:
    (answer,) = converse(address, [versions(1)])
    return {key: (first, last) for key, first, last in struct.iter_unpack(">hhh", answer[10:])}


@pytest.mark.promise(
    "unsupported-requests.md",
    "An unsupported request gets an empty response, the end of the connection, or what the broker does, as configured.",
)
@pytest.mark.promise("unsupported-requests.md", "An unsupported Produce without acks ends the connection.")
@each(("key", "version"), REFUSED)
def test_the_broker_closes_and_the_sidecar_answers(site, key, version):
    # So any Produce begins that wants an answer.
    frames = [versions(1), request(key, version, 7, b"\0\1" * 10), versions(3)]
    assert ids(converse(site.direct, frames[:2])) == [1]
    before, answer, after = converse(site.through["empty"], frames)
    assert response(7) == struct.pack(">i", len(answer)) + answer
    assert (before[4:], ids([before, after])) == (after[4:], [1, 3])
    for policy in ("close", "forward"):
        assert ids(converse(site.through[policy], frames)) == [1]
    if key == PRODUCE:
        without_acks = struct.pack(">hi", 0, 1000) + NO_TOPICS
        if version > 2:  # before it there is no transactional id
            without_acks = b"\0\0\0\0" + bytes(4) + b"\x01\0"
        frames = [versions(1), request(PRODUCE, version, 2, without_acks), versions(3)]
        for address in (site.direct, *site.through.values()):
            assert ids(converse(address, frames)) == [1]


@pytest.mark.promise("unsupported-requests.md", "ApiVersions goes to the broker in any version.")
def test_any_version_of_api_versions_is_the_brokers(site):
    for version in (-1, 5, 6, 99, 32767):
        frames = [request(API_VERSIONS, version, 5, b"\0\x02a\x02b\0"), versions(6)]
        through, direct = converse(site.through["empty"], frames), converse(site.direct, frames)
        assert through[0] == direct[0]
        assert through[0][4:6] == (35).to_bytes(2, "big")


@pytest.mark.promise("unsupported-requests.md", "A size or a header that cannot be a request's ends the connection.")
@each(
    "bad",
    [
        struct.pack(">ihhih", 10, METADATA, 1, 2, -5),  # the length of the client id
        struct.pack(">ihhih", 12, 9999, 1, 2, 500) + b"ab",  # a client id beyond the frame
        struct.pack(">ihh", 7, 9999, 0) + bytes(3),  # too short
        struct.pack(">ihhih", 104_857_601, 9999, 0, 2, -1),  # 100 MiB and a byte
        struct.pack(">i", -1) + bytes(30),
    ],
)
def test_what_is_no_request_ends_the_connection(site, bad):
    for address in (site.direct, *site.through.values()):
        assert ids(converse(address, [versions(1), bad])) in ([1], []), address  # what is owed may be dropped


@pytest.mark.promise(
    "supported-versions.md", "Every supported version of every api is answered as by the broker itself."
)
def test_every_supported_version_of_every_api_is_answered_as_by_the_broker(site):
    reported = supported(site.direct)
    assert supported(site.through["empty"]) == {**reported, 30000: (0, 0)}
    through, direct = {}, {}
    for key, (first, last) in reported.items():
        for version in {max(first, 0, APIS[key].min_version), last}:
            if (key == PRODUCE and version < 3) or (key == ADD_PARTITIONS_TO_TXN and version > 3):
                continue  # refused; and never answered where it holds no transaction
            frames = [request(key, version, 5, blank(key, version)), versions(6)]
            for address, outcome in ((site.through["empty"], through), (site.direct, direct)):
                outcome[api_name(key), version] = ids(converse(address, frames))
    refused = {name for name in direct if name[0] == api_name(WRITE_TXN_MARKERS)}  # by the protection of topics
    assert [through.pop(name) for name in refused] == [[]] * len(refused)
    assert through == {name: outcome for name, outcome in direct.items() if name not in refused}
    assert list(through.values()).count([5, 6]) > 100


@pytest.mark.promise(
    "unsupported-requests.md", "Answers of the broker and of the sidecar keep the order of their requests."
)
def test_random_mixes_are_answered_in_order(site):
    random = Random(8)
    address = site.through["empty"]
    kinds = [
        (API_VERSIONS, 0, b""), (API_VERSIONS, 2, b""), (API_VERSIONS, 99, b"\0"), (METADATA, 1, NO_TOPICS),
        (METADATA, 5, NO_TOPICS + b"\0"), (9999, 0, b""), (METADATA, 99, bytes(70_000)), (FETCH, 3, b"x"),
        (-1, -1, b""),
    ]  # fmt: skip
    alone = [converse(address, [request(*kind[:2], 0, kind[2])])[0][4:] for kind in kinds]
    assert [len(body) > 0 for body in alone] == [True] * 5 + [False] * 4
    for _ in range(200):
        chosen = random.choices(range(len(kinds)), [9, 9, 9, 9, 9, 9, 1, 9, 9], k=random.randrange(2, 30))
        numbers = [random.choice((1, 2, 3)) for _ in chosen]
        sent = b"".join(
            request(*kinds[kind][:2], number, kinds[kind][2]) for kind, number in zip(chosen, numbers, strict=True)
        )
        with connect(address) as sock, sock.makefile("rb") as reader:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            cuts = sorted(random.choices(range(len(sent)), k=random.randrange(4)))
            for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                sock.sendall(sent[start:end])
            for kind, number in zip(chosen, numbers, strict=True):
                assert answer(reader) == struct.pack(">i", number) + alone[kind], (kinds[kind][:2], numbers)


SECRET = "alice-secret"


@pytest.fixture(scope="module")
def sasl_site(secured, tmp_path_factory):
    """Address of the broker's listener with SASL, that of the sidecar before it, and the sidecar, without observers."""
    behind, before = secured.listeners["SASL"]
    listener = {"name": "SASL", "bind": before, "upstream": behind, "security.protocol": "SASL_PLAINTEXT"}
    config = {"broker.id": 1, "listeners": [listener], "admin": {"bind": secured.node.admin}}
    with running(config, tmp_path_factory.mktemp("sasl")) as process:
        with Own(before, "first") as client:  # its answer has what the broker supports
            assert len(client.ask(18, 0, b"")) > 100
        yield behind, before, process


@pytest.mark.promise(
    "unsupported-requests.md", "Before a login everything goes to the broker, which closes the connection."
)
@each(("key", "version"), [(9999, 0), (METADATA, 99), (METADATA, 1), (30000, 0), (30000, 1)])
def test_before_the_login_the_broker_closes(sasl_site, key, version):
    after_a_handshake = []
    for address in sasl_site[:2]:
        with Own(address, "nobody") as client, pytest.raises(ConnectionError):
            client.ask(key, version, bytes(4))
        with Own(address, "nobody") as client:
            assert client.begin("PLAIN") == 0
            try:
                after_a_handshake.append(client.ask(key, version, bytes(4)))
            except ConnectionError:
                after_a_handshake.append(b"closed")
    direct, through = after_a_handshake
    assert through == direct


@pytest.mark.promise(
    "unsupported-requests.md", "After a login the sidecar answers unsupported requests of listeners with SASL."
)
def test_after_the_login_the_sidecar_answers(sasl_site):
    behind, before, sidecar = sasl_site
    replied = "brokerside_intercepted_requests_total"
    counted = sample(sidecar.metrics(), replied)
    with Own(before, "alice") as client:
        assert client.begin("PLAIN") == 0
        assert client.wrapped(plain("alice", SECRET))[0] == 0
        assert client.ask(9999, 0, b"") == client.ask(METADATA, 99, b"") == client.ask(30000, 1, b"") == b""
        assert client.ask_at_once(9999, 0, [b"x", b"", b"yz"]) == [b""] * 3
        client.metadata()
    assert sample(sidecar.metrics(), replied) - counted == 6
    assert sample(sidecar.metrics(), "brokerside_decode_total") == 0
    with Own(behind, "alice") as client:
        assert client.begin("PLAIN") == 0
        assert client.wrapped(plain("alice", SECRET))[0] == 0
        with pytest.raises(ConnectionError):
            client.ask(9999, 0, b"")


@pytest.mark.promise(
    "unsupported-requests.md",
    "After bare tokens of SASL the first request has to be one that Kafka has, or counts as a token.",
)
def test_with_tokens_that_are_no_requests(sasl_site):
    with Own(sasl_site[1], "alice") as client:
        assert client.begin("PLAIN", 0) == 0
        client.bare(plain("alice", SECRET))
        client.metadata()  # until a request that Kafka has, whatever comes may be a token
        assert client.ask(9999, 0, b"") == b""
        client.metadata()


BROKER_METADATA, UNKNOWN = 30_000, 9999
CHUNK = 120_000
"""Bytes that a client has sent before the sidecar reads: less than it takes at once, or the kernel."""

KINDS = {
    "unsupported": request(UNKNOWN, 0, 1, client_id=None),
    "BrokerMetadata": request(BROKER_METADATA, 0, 1, bytes(4), client_id=None),
    "forwarded": request(API_VERSIONS, 0, 1, client_id=None),
}
"""One request of each kind that costs work, as short as it can be."""


@pytest.fixture(scope="module")
def greedy_site(cluster, tmp_path_factory):
    """A sidecar, where it listens, and what it has reported."""
    node, folder = cluster.nodes[0], tmp_path_factory.mktemp("fairness")
    most = CHUNK // len(KINDS["unsupported"])
    config = config_of(node, **{"observer.class.names": [RECORDER], "unsupported.request.max.consecutive": most})
    address, admin = (f"127.0.0.1:{port}" for port in free_ports(2))  # the other sidecar before this broker still runs
    config["listeners"][0] |= {"bind": address, "advertised": node.advertised}
    config["admin"] = {"bind": admin}
    reported = folder / "reported"
    with running(config, folder, **{recorder.FILE: str(reported)}) as process:
        yield process, address, reported


@pytest.mark.promise(
    "security.md",
    "Others are served between the requests of a client that sends thousands at once, whatever it asks for.",
)
@pytest.mark.promise(
    "unsupported-requests.md",
    "So many unsupported requests in a row end the connection; any other request in between begins a new count.",
)
def test_a_client_that_asks_much_at_once_has_its_turn_like_others(greedy_site):
    sidecar, address, reported = greedy_site
    for kind, one in KINDS.items():
        count = CHUNK // len(one)
        with connect(address) as greedy, connect(address) as honest:
            of_greedy, of_honest = greedy.makefile("rb"), honest.makefile("rb")
            for sock, reader in ((greedy, of_greedy), (honest, of_honest)):  # both are carried
                sock.sendall(versions(1))
                answer(reader)
            os.kill(sidecar.process.pid, signal.SIGSTOP)
            try:
                greedy.sendall(one * count)
                honest.sendall(request(BROKER_METADATA, 0, 77, bytes(4), client_id=f"honest {kind}"))
            finally:
                os.kill(sidecar.process.pid, signal.SIGCONT)
            assert answer(of_honest)[:4] == struct.pack(">i", 77)
            for _ in range(count):
                answer(of_greedy)
            if kind == "unsupported":  # as many in a row as may be
                greedy.sendall(request(METADATA, 1, 8, bytes(4)) + one * count)
                assert len(answer(of_greedy)) > 30
                assert [answer(of_greedy) for _ in range(count)] == [one[8:12]] * count
                greedy.sendall(one)
                assert of_greedy.read() == b""

        until(lambda kind=kind: before(reported, f"honest {kind}") is not None)
        assert len(before(reported, f"honest {kind}") or ()) <= 5 * TURN, kind
    name = "brokerside_connections_closed_total"
    assert sample(sidecar.metrics(), name, listener="CLIENT", cause="unsupported_request") == 1


def before(reported: Path, client_id: str) -> list[Recorded] | None:
    """The exchanges of others that were reported right before that of this client, once it is there."""
    exchanges = [each for each in recorder.read(reported) if each.what == "exchange"]
    at = next((n for n, one in enumerate(exchanges) if (one.client_id, one.correlation_id) == (client_id, 77)), None)
    if at is None:
        return None
    return list(takewhile(lambda each: each.connection != exchanges[at].connection, reversed(exchanges[:at])))
