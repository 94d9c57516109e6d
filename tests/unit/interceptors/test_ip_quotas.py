"""Which changes of quotas are refused where the quotas of addresses are in the sidecar's configuration."""

from typing import Any

import pytest
from msgspec.structs import replace

from proxy.core.apis import ALTER_CLIENT_QUOTAS, response_header_is_flexible
from proxy.core.encode import encode
from proxy.core.exchange import Connection
from proxy.core.interceptor import ON_BODY, Disposition, Request, Verdict
from proxy.core.schema import layout
from proxy.core.struct import view
from proxy.interceptors.ip_quotas import IP_MESSAGE, MAX_READ, OTHER_MESSAGE, POLICY_VIOLATION, IpQuotas
from tests.cases import each

CONNECTION = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
VERSIONS = (0, 1)
RATE = {"Key": "connection_creation_rate", "Value": 5.0, "Remove": False}


def entry(**entities: str | None) -> dict[str, Any]:
    named = [{"EntityType": kind.replace("_", "-"), "EntityName": name} for kind, name in entities.items()]
    return {"Entity": named, "Ops": [RATE]}


def body(version: int, *entries: dict[str, Any]) -> bytes:
    message = layout(ALTER_CLIENT_QUOTAS, version, response=False)
    return encode(message, {"Entries": list(entries), "ValidateOnly": False})


def judge(version: int, content: bytes, connection: Connection = CONNECTION) -> Verdict:
    return IpQuotas(in_file=True).on_body(Request(connection, ALTER_CLIENT_QUOTAS, version, "c", 1, 0), content)


def ask(version: int, *entries: dict[str, Any]) -> Verdict:
    return judge(version, body(version, *entries))


def answered(version: int, verdict: Verdict) -> list[tuple[int, str, list[tuple[str, str | None]]]]:
    assert isinstance(verdict, bytes)
    header = b"\0" if response_header_is_flexible(ALTER_CLIENT_QUOTAS, version) else b""
    assert verdict.startswith(header)
    answer = view(ALTER_CLIENT_QUOTAS, version, verdict[len(header) :], response=True)
    return [
        (
            one.get("ErrorCode"),
            one.get("ErrorMessage"),
            [(entity.get("EntityType"), entity.get("EntityName")) for entity in one.get("Entity")],
        )
        for one in answer.get("Entries")
    ]


@pytest.mark.promise(
    "limits.md", "Where quotas of addresses are in the file, changes of them at the cluster are refused."
)
@each("version", VERSIONS)
def test_quotas_of_addresses_are_refused_with_all_that_come_with_them(version: int) -> None:
    made = answered(version, ask(version, entry(ip="10.0.0.7"), entry(user="ann", client_id=None), entry(ip=None)))
    assert made == [
        (POLICY_VIOLATION, IP_MESSAGE, [("ip", "10.0.0.7")]),
        (POLICY_VIOLATION, OTHER_MESSAGE, [("user", "ann"), ("client-id", None)]),
        (POLICY_VIOLATION, IP_MESSAGE, [("ip", None)]),
    ]


@pytest.mark.promise("limits.md", "Quotas of users and client ids are the broker's, and changes of them are forwarded.")
@each("version", VERSIONS)
def test_all_other_quotas_are_forwarded(version: int) -> None:
    assert ask(version) is Disposition.FORWARD
    assert ask(version, entry(user="philip"), entry(client_id="ip")) is Disposition.FORWARD
    users = [entry(user=f"philip-{number}", client_id=None) for number in range(600)]
    assert ask(version, *users) is Disposition.FORWARD
    before_login = replace(CONNECTION, principal_source="unauthenticated")
    assert judge(version, body(version, entry(ip="10.0.0.7")), before_login) is Disposition.FORWARD


def test_nothing_is_read_where_the_cluster_has_the_quotas() -> None:
    quotas = IpQuotas(in_file=False)
    assert [quotas.flags(ALTER_CLIENT_QUOTAS, version) for version in (*VERSIONS, 2)] == [0, 0, 0]
    quotas.in_file = True
    assert [quotas.flags(ALTER_CLIENT_QUOTAS, version) for version in (*VERSIONS, 2)] == [ON_BODY, ON_BODY, 0]
    assert quotas.flags(48, 0) == 0


@pytest.mark.promise(
    "limits.md", "`ip.store: file` closes the connection of a change with more than 200 entries, entities and settings."
)
@each("version", VERSIONS)
def test_a_quota_of_an_address_among_too_many_parts_closes_the_connection(version: int) -> None:
    address, none = entry(ip="10.0.0.7"), {"Entity": [], "Ops": []}
    entities = {"Entity": [{"EntityType": "", "EntityName": None}] * 4_000 + address["Entity"], "Ops": []}
    assert ask(version, *[none] * 4_000, address) is Disposition.CLOSE
    assert ask(version, entities) is Disposition.CLOSE
    assert ask(version, address, {"Entity": [], "Ops": [{**RATE, "Key": ""}] * 4_000}) is Disposition.CLOSE
    most = [entry(ip="10.0.0.7") for _ in range(MAX_READ // 3)]
    assert len(answered(version, ask(version, *most))) == len(most)
    assert ask(version, *most, most[0]) is Disposition.CLOSE


@each("length", [b"\3", b"\x83\0", b"\x83\x80\0", b"\x83\x80\x80\x80\0"])
def test_the_type_is_found_however_its_length_is_encoded(length: bytes) -> None:
    whole = body(1, entry(ip="10.0.0.7"))
    assert whole.count(b"\3ip") == 1
    verdict = judge(1, whole.replace(b"\3ip", length + b"ip"))
    assert isinstance(verdict, bytes)
    assert IP_MESSAGE.encode() in verdict


def test_tagged_fields_that_no_version_has_close_the_connection() -> None:
    whole = body(1, entry(ip="10.0.0.7"))
    after_name = whole.index(b"10.0.0.7") + len(b"10.0.0.7")
    assert judge(1, whole[:after_name] + b"\1\5\1x" + whole[after_name + 1 :]) is Disposition.CLOSE
