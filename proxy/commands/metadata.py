"""The command that asks a sidecar for BrokerMetadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.commands.arguments import add_api_key, add_listener, add_output, bounded, command
from proxy.commands.output import encode_value

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.commands.arguments import Commands
    from proxy.config import Endpoint
    from proxy.interceptors.broker_metadata import BrokerEntry

NODE_IDS = -1, 2_147_483_647
"""Inclusive."""


def add(commands: Commands) -> None:
    """Put it on the command line."""
    made = command(commands, "broker-metadata", broker_metadata)
    add_listener(made)
    text = "Only this broker; -1 is the one that is asked. May be given several times; without it, all."
    made.add_argument("--broker", type=_node_id, action="append", default=[], dest="brokers", metavar="ID", help=text)
    add_api_key(made)
    add_output(made, ("table", "json", "yaml"))


def broker_metadata(
    address: Endpoint, brokers: list[int], kafka_config: Path | None, api_key: int, output: str
) -> None:
    """Show the brokers of a fleet: their addresses for clients, supported versions, and tags."""
    from proxy.client import BrokerMetadataClient
    from proxy.commands.client_settings import client_settings

    with BrokerMetadataClient(address, client_settings(kafka_config), api_key=api_key) as client:
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
    return bounded(text, NODE_IDS, f"node ids up to {NODE_IDS[1]}, and -1")
