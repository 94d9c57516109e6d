"""What a client does with the entry of a broker."""

from __future__ import annotations

from proxy.config.values import Endpoint
from proxy.interceptors.broker_metadata import BrokerEntry
from proxy.protocol.versions import ProtocolRange


def protocol_range(broker: BrokerEntry) -> ProtocolRange:
    """Return the broker's range, for ``versions_for``."""
    exact = broker.tags.get("protocol.version.exact") == "true"
    return ProtocolRange(broker.protocol_min, broker.protocol_max, exact)


def producer_settings(broker: BrokerEntry) -> dict[str, int]:
    """Return librdkafka's settings of a producer that takes no larger record than the broker; none where unknown."""
    largest = broker.tags.get("message.max.bytes")
    return {} if largest is None else {"message.max.bytes": int(largest)}


def endpoints(broker: BrokerEntry) -> dict[str, Endpoint]:
    """Return where the broker is reached, the first address of each security protocol (in lower case)."""
    found: dict[str, Endpoint] = {}
    for endpoint in filter(None, broker.tags.get("endpoints", "").split(",")):
        protocol, _, address = endpoint.partition("://")
        found.setdefault(protocol, Endpoint.parse(address))
    return found
