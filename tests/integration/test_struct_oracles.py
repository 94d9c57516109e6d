"""Kafka as the judge: what its own classes read of every message, and what a broker says and takes."""

import itertools
import json
import socket
import struct
import subprocess
import uuid
from base64 import b64decode
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.record import MemoryRecordsBuilder

from proxy.core.accessors import Accessors, Records
from proxy.core.schema import plain
from proxy.core.struct import view
from proxy.local import cluster as local_cluster
from proxy.local.broker import broker_jars
from proxy.local.jars import java
from proxy.protocol.versions import message_formats, ranges, release_of, release_range
from proxy.tls.certificates import name_of
from proxy.tls.principal_mapping import NoMatchingRule, PrincipalMapper
from tests.frames import request
from tests.integration.topics import described_by
from tests.tools.addressed import all_addressed, drawn, rewriting, rewritten
from tests.tools.generate_apis import versions
from tests.tools.generate_schema import messages
from tests.tools.random_messages import Drawn, all_messages, draw
from tests.tools.record_ranges import ask, recorded
from tests.tools.topic import create

pytestmark = pytest.mark.kafka

SOURCE = Path(__file__).parents[1] / "interop" / "java_messages" / "Reencode.java"
JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
EACH, EACH_REWRITTEN = 2, 10


@cache
def defined_by(kafka: str) -> dict[tuple[str, int], tuple[int, int]]:
    [jar] = [path for path in broker_jars(kafka, progress=False) if path.name == f"kafka-clients-{kafka}.jar"]
    return {name: versions(message["validVersions"]) for name, message in messages(jar).items()}


def defines(kafka: str, message: tuple[int, int, bool]) -> bool:
    low, high = defined_by(kafka).get(("Response" if message[2] else "Request", message[0]), (0, -1))
    return low <= message[1] <= high


def reencoded(kafka: str, drawn: list[Drawn]) -> list[str]:
    data = b"".join(struct.pack(">hh?i", one.key, one.version, one.response, len(one.body)) + one.body for one in drawn)
    class_path = ":".join(map(str, broker_jars(kafka, progress=False)))
    command = [str(java()), *JVM, "-cp", class_path, str(SOURCE)]
    done = subprocess.run(command, input=data, capture_output=True, timeout=200, check=True)
    return done.stdout.decode().splitlines()


def compare(ours: Accessors, java_says: dict[str, Any], where: str) -> int:
    """Hold every field of a struct to Kafka's JSON of it; return how many there were."""
    count = 0
    theirs = {plain(name): value for name, value in java_says.items()}
    for name in ours.field_names():
        value = ours.get(name)
        at = f"{where}.{name}"
        if isinstance(value, Records):
            of_null = theirs.pop(plain(name), None)
            assert of_null is None, at
            assert value.size_in_bytes() == theirs.pop(f"{plain(name)}sizeinbytes", 0), at
        elif plain(name) not in theirs:  # Kafka leaves out tagged fields that have their default
            assert value in (None, (), "", 0, -1, 2**63 - 1, 22 * "A"), at
        elif isinstance(value, Accessors):
            count += compare(value, theirs.pop(plain(name)), at)
        elif isinstance(value, tuple) and value and isinstance(value[0], Accessors):
            reported = theirs.pop(plain(name))
            assert len(value) == len(reported), at
            count += sum(compare(one, two, at) for one, two in zip(value, reported, strict=True))
        elif isinstance(value, bytes):
            assert value == b64decode(theirs.pop(plain(name))), at
        else:
            reported = theirs.pop(plain(name))
            assert (list(value) if isinstance(value, tuple) else value) == reported, at
        count += 1
    assert all(not ours.has_field(name) for name in theirs), where  # withheld
    return count


@pytest.mark.promise(
    "observers.md", "A struct has the values that Kafka's own classes read, for every api key and version."
)
@pytest.mark.promise(
    "addresses.md", "Kafka's own classes read every rewritten response, with the same values but the addresses."
)
@pytest.mark.slow
def test_kafkas_own_classes_read_the_same():
    """Of every version the newest release that has it: each field, and the bytes when it writes them again."""
    compared = changed = 0
    left, addressed = list(all_messages()), {(*one, True) for one in all_addressed()}
    for kafka in ("4.4.0", "3.9.2"):
        mine = [message for message in left if defines(kafka, message)]
        left = [message for message in left if not defines(kafka, message)]
        found = [draw(Random(f"{message} {number}"), *message) for message in mine for number in range(EACH)]
        for number, (key, version, _) in itertools.product(range(EACH_REWRITTEN), addressed.intersection(mine)):
            one = drawn(number, key, version)
            found.append(one._replace(body=rewritten(rewriting(), one)))
            changed += found[-1].body != one.body
        for one, line in zip(found, reencoded(kafka, found), strict=True):
            where = f"Kafka {kafka}, api key {one.key}, version {one.version}, response: {one.response}"
            assert line.startswith("{"), f"{where}: {line}"
            ours = view(one.key, one.version, one.body, response=one.response)
            compared += compare(ours, json.loads(line), where)
    assert left == []
    assert changed > 100
    assert compared > 16_000


PRODUCE = {"v0": 1, "v1": 2, "v2": 3}
"""A version of Produce that records of the format come in."""


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.2", marks=pytest.mark.slow)])
def broker(request, tmp_path_factory):
    if request.param == "4.3.1":
        yield request.getfixturevalue("cluster")
        return
    folder = tmp_path_factory.mktemp("broker")
    yield local_cluster.up(folder, kafka_version=request.param, advertise="broker", progress=False)
    local_cluster.down(folder)


def produce(address: str, topic: str, version: int, magic: int) -> int | None:
    """Send one record and return the error code of the answer, None where the connection is closed instead."""
    records = MemoryRecordsBuilder(magic, 0, 1 << 16)
    records.append(timestamp=None if magic == 0 else 1, key=None, value=b"value")
    records.close()
    data = bytes(records.buffer())
    name = topic.encode()
    body = b"\xff\xff" if version >= 3 else b""
    body += struct.pack(f">hiih{len(name)}siii", 1, 10_000, 1, len(name), name, 1, 0, len(data)) + data
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client, client.makefile("rb") as answers:
        client.sendall(request(0, version, 1, body))
        if not (size := answers.read(4)):
            return None
        answer = answers.read(int.from_bytes(size, "big"))
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    return int(error)


@pytest.mark.promise(
    "protocol.md", "A broker's range of ProtocolVersions and its formats of messages are those that it takes."
)
def test_a_range_and_formats_are_what_the_broker_has_and_takes(broker):
    address = broker.nodes[0].upstream
    supported = ask(address)
    release = broker.kafka_version.rpartition(".")[0]
    assert supported == recorded()[broker.kafka_version]
    assert ranges(supported) == release_range(release)
    assert release_of(supported) == f"{release}.x"
    admin = AdminClient({"bootstrap.servers": broker.internal_bootstrap})
    topic = f"formats-{uuid.uuid4().hex[:8]}"
    create(admin, NewTopic(topic, 1, 1))
    described_by(broker, topic)
    taken = [form for form, version in PRODUCE.items() if produce(address, topic, version, int(form[1])) == 0]
    assert ",".join(taken) == message_formats(supported)


TLS_SOURCE = Path(__file__).parents[1] / "tools" / "TlsOracle.java"
UTF8, PRINTABLE, IA5, T61, UNIVERSAL, NUMERIC, OCTETS = 0x0C, 0x13, 0x16, 0x14, 0x1C, 0x12, 0x04
TYPES = {
    "CN": "550403", "C": "550406", "L": "550407", "ST": "550408", "STREET": "550409", "O": "55040a", "OU": "55040b",
    "DC": "0992268993f22c640119", "UID": "0992268993f22c640101", "SN": "550404", "serialNumber": "550405",
    "title": "55040c", "emailAddress": "2a864886f70d010901", "dnQualifier": "55042e", "two numbers": "8837",
}  # fmt: skip
TEXTS = [
    "", " ", "  a  ", "\ra\r", "a,b", 'q"q', "a+b=c<d>e;f", "#hash", "a#b", "back\\slash", "nul\0x", "üñí", "日本",
    "😀", "tab\tx", "\nx\n", " lead", "trail ", " \\ ", "=", ",", "a\u00a0", "x" * 300,
]  # fmt: skip

RULES = [
    "DEFAULT", "", "  DEFAULT  ,  RULE:a/b/  ", "DEFAULT,RULE:a/b/", "RULE:a/b/LDEFAULT", "RULE:a/b/X,DEFAULT", "foo",
    "foo,DEFAULT", "DEFAULTx", "RULE:CN=(.*)/$1", "RULE:CN=(.*)/$1/L extra", "RULE:.*/x/", "RULE:^CN=([^,]+).*/$1/U",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,DEFAULT",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT",
    "RULE:CN=(.*),O=(.*)/$2-$1/", "RULE:CN=(.*)/$1@$4/", "RULE:CN=(.*)/$12/", "RULE:CN=(.*)/$0/", "RULE:CN=(.*)/a\\/",
    "RULE:CN=(?<n>.*)/${n}!/", "RULE:CN=(\\w+).*/\\$1\\/x/", "RULE:CN=a,O=b/c/", "RULE:CN\\=(\\Qa.b\\E)/$1/",
    "RULE:CN=(a),O=(b)|CN=(d)/$1$2$3/", "RULE:CN=(.*+)/$1/", "RULE:CN=(\\d+)/$1/", "RULE:(?i)cn=(.*)/$1/L",
    "RULE:CN=(.*)$/$1/", "RULE:^CN=([^,]*)(,.*)?$/$1/, DEFAULT", "RULE:.*CN=([a-z.]*).*/$1/L , RULE:x/y/U",
    "RULE:(CN)=(a)(b)?.*/$3$2$1/", "RULE:(?s)CN=(.*)/$1/", "RULE:CN=(\\x61|\\u0062).*/<$1>/",
    "RULE:CN=([\\w&&a].*)/$1/",
]  # fmt: skip
SUBJECTS = [
    "CN=a", "CN=Duke,OU=ServiceUsers,O=Org,C=DE", "CN=Duke,OU=x,O=Org,L=l,ST=s,C=DE", "", "CN=a,O=b", "CN=42", "CN=a.b",
    "cn=X", "CN=x\n", "CN=a\\,b,O=q", "CN=Üñí", "CN=d", "OU=u,CN=kafka.svc,O=o", "CN=a\r", "CN=ab\u2028",
]  # fmt: skip


def element(tag: int, content: bytes) -> bytes:
    size = len(content)
    return bytes([tag]) + (bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")) + content


def attribute(kind: str, value: bytes, tag: int = UTF8) -> bytes:
    return element(0x30, element(0x06, bytes.fromhex(TYPES[kind])) + element(tag, value))


def name(*parts: list[bytes]) -> bytes:
    return element(0x30, b"".join(element(0x31, b"".join(part)) for part in parts))


def names() -> list[bytes]:
    country = [attribute("C", b"DE", PRINTABLE)]
    return [
        name(),
        *(name(country, [attribute(kind, b"x y")]) for kind in TYPES),
        *(name([attribute("CN", text.encode())]) for text in TEXTS),
        # Of other strings Java 17 reads what is not ASCII as UTF-8; later versions do not.
        *(name([attribute("CN", b"abc", tag)]) for tag in (PRINTABLE, IA5, T61, UNIVERSAL, NUMERIC, OCTETS)),
        name([attribute("CN", b"a"), attribute("OU", b"b")], [attribute("O", b"c", PRINTABLE)]),
    ]


def asked(lines: list[str]) -> list[str]:
    class_path = ":".join(map(str, broker_jars("4.3.1", progress=False)))
    done = subprocess.run(
        [str(java()), "-cp", class_path, str(TLS_SOURCE)],
        input="\n".join(lines), capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    return [bytes.fromhex(line).decode() for line in done.stdout.splitlines()]


def mapped(rules: str, subject: str) -> str:
    try:
        return f"={PrincipalMapper(rules).map_name(subject)}"
    except NoMatchingRule:
        return "no rule"
    except ValueError:
        return "refused"


@pytest.mark.promise("tls.md", "Names of certificates, and the principals that rules make of them, are those of Kafka.")
def test_names_and_principals_are_those_of_java_and_kafka():
    """But for rules that a broker takes and that fail for its clients, or that Python reads otherwise."""
    encoded, cases = names(), [(rules, subject) for rules in RULES for subject in SUBJECTS]
    asking = [f"name {one.hex()}" for one in encoded]
    asking += [f"map {rules.encode().hex()} {subject.encode().hex()}" for rules, subject in cases]
    answers = asked(asking)
    assert [f"={name_of(one)}" for one in encoded] == answers[: len(encoded)]
    compared = 0
    for (rules, subject), answer in zip(cases, answers[len(encoded) :], strict=True):
        ours = mapped(rules, subject)
        if ours != "refused" or answer == "refused":
            assert ours == answer, (rules, subject)
            compared += 1
    assert compared > 0.9 * len(cases)
