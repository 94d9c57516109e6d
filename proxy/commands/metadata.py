"""The command that asks a sidecar for BrokerMetadata."""

from __future__ import annotations

from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.commands.arguments import add_output, command, endpoint
from proxy.commands.output import encode_value
from proxy.protocol.private import BASE

if TYPE_CHECKING:
    from proxy.commands.arguments import Commands
    from proxy.config import Endpoint
    from proxy.interceptors.broker_metadata import BrokerEntry

API_KEYS = 10_000, 32_700
"""Inclusive: what private.api.key.base may be."""

NODE_IDS = -1, 2_147_483_647
"""Inclusive."""


def add(commands: Commands) -> None:
    """Put it on the command line."""
    made = command(commands, "broker-metadata", broker_metadata)
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument("address", nargs="?", type=endpoint, metavar="HOST:PORT", help="A listener of a sidecar.")
    where.add_argument(
        "--bootstrap-server", type=endpoint, metavar="HOST:PORT", help="The same, as Kafka's tools have it."
    )
    text = "Only this broker; -1 is the one that is asked. May be given several times; without it, all."
    made.add_argument("--broker", type=_node_id, action="append", default=[], dest="brokers", metavar="ID", help=text)
    text = "Properties file with TLS and SASL, for listeners that need them: Kafka's settings, or librdkafka's."
    made.add_argument("--command-config", "--kafka-config", type=Path, dest="kafka_config", metavar="FILE", help=text)
    text = "The sidecars' private.api.key.base; default: %(default)s."
    made.add_argument("--api-key", type=_api_key, default=BASE, metavar="N", help=text)
    add_output(made, ("table", "json", "yaml"))


def broker_metadata(
    address: Endpoint | None,
    bootstrap_server: Endpoint | None,
    brokers: list[int],
    kafka_config: Path | None,
    api_key: int,
    output: str,
) -> None:
    """Show the brokers of a fleet: their addresses for clients, supported versions, and tags."""
    from proxy.client import BrokerMetadataClient
    from proxy.commands.client_settings import client_settings

    settings = client_settings(kafka_config) if kafka_config is not None else {}
    asked = address or bootstrap_server
    assert asked is not None  # one of the two is required
    with BrokerMetadataClient(asked, settings, api_key=api_key) as client:
        found = client.brokers(brokers)
    print(_table(found) if output == "table" else encode_value(found, output))


def _table(found: list[BrokerEntry]) -> str:
    lines = []
    for broker in found:
        lines.append(f"broker {broker.node_id}  {broker.host}:{broker.port}")
        lines.append(f"  ProtocolVersion {broker.protocol_min} to {broker.protocol_max}")
        width = max(map(len, broker.tags), default=0)
        lines += [f"  {name:{width}}  {value}" for name, value in broker.tags.items()]
    return "\n".join(lines) or "no such broker"


def _node_id(text: str) -> int:
    return _number(text, *NODE_IDS, f"node ids up to {NODE_IDS[1]}, and -1")


def _api_key(text: str) -> int:
    return _number(text, *API_KEYS, f"api keys from {API_KEYS[0]} to {API_KEYS[1]}")


def _number(text: str, least: int, most: int, allowed: str) -> int:
    with suppress(ValueError):
        if least <= (number := int(text)) <= most:
            return number
    raise ArgumentTypeError(f"{text!r}: allowed are {allowed}")
