"""Which changes of quotas are refused where the quotas of addresses are in the sidecar's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core.apis import ALTER_CLIENT_QUOTAS, response_header_is_flexible
from proxy.core.encode import encode
from proxy.core.exchange import Connection
from proxy.core.interceptor import ON_BODY, Disposition, Request, Verdict
from proxy.core.schema import layout
from proxy.core.struct import view
from proxy.errors import MalformedBody
from proxy.interceptors.ip_quotas import IP_MESSAGE, OTHER_MESSAGE, POLICY_VIOLATION, IpQuotas

CONNECTION = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
VERSIONS = (0, 1)
RATE = {"Key": "connection_creation_rate", "Value": 5.0, "Remove": False}


def entry(**entities: str | None) -> dict[str, Any]:
    named = [{"EntityType": kind.replace("_", "-"), "EntityName": name} for kind, name in entities.items()]
    return {"Entity": named, "Ops": [RATE]}


def ask(version: int, *entries: dict[str, Any]) -> Verdict:
    message = layout(ALTER_CLIENT_QUOTAS, version, response=False)
    body = encode(message, {"Entries": list(entries), "ValidateOnly": False})
    return IpQuotas(in_file=True).on_body(Request(CONNECTION, ALTER_CLIENT_QUOTAS, version, "c", 1, 0), body)


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


@pytest.mark.parametrize("version", VERSIONS)
def test_quotas_of_addresses_are_refused_with_all_that_come_with_them(version: int) -> None:
    made = answered(version, ask(version, entry(ip="10.0.0.7"), entry(user="ann", client_id=None), entry(ip=None)))
    assert made == [
        (POLICY_VIOLATION, IP_MESSAGE, [("ip", "10.0.0.7")]),
        (POLICY_VIOLATION, OTHER_MESSAGE, [("user", "ann"), ("client-id", None)]),
        (POLICY_VIOLATION, IP_MESSAGE, [("ip", None)]),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_other_quotas_are_forwarded(version: int) -> None:
    assert ask(version) is Disposition.FORWARD
    assert ask(version, entry(user="philip"), entry(client_id="ip")) is Disposition.FORWARD


def test_nothing_is_read_where_the_cluster_has_the_quotas() -> None:
    quotas = IpQuotas(in_file=False)
    assert [quotas.flags(ALTER_CLIENT_QUOTAS, version) for version in (*VERSIONS, 2)] == [0, 0, 0]
    quotas.in_file = True
    assert [quotas.flags(ALTER_CLIENT_QUOTAS, version) for version in (*VERSIONS, 2)] == [ON_BODY, ON_BODY, 0]
    assert quotas.flags(48, 0) == 0


def test_a_body_that_cannot_be_read_is_said_to_be_one() -> None:
    with pytest.raises(MalformedBody):
        IpQuotas(in_file=True).on_body(Request(CONNECTION, ALTER_CLIENT_QUOTAS, 0, "c", 1, 0), b"\0\0\0\5ip")
