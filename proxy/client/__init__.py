"""What clients can do with BrokerMetadata: ask for it, choose versions, make sure of the broker they talk to.

    with BrokerMetadataClient("kafka-1.example:9092") as client:
        broker = client.check(1)
        versions = versions_for(protocol_range(broker))
        producer = Producer({"bootstrap.servers": …} | producer_settings(broker))

For programs that are not asyncio's; needs neither Spark nor observers.
"""

from proxy.client.broker_metadata import BrokerMetadataClient
from proxy.client.entries import endpoints, producer_settings, protocol_range
from proxy.client.errors import BrokerIdMismatch, UnsupportedRequestError
from proxy.interceptors.broker_metadata import BrokerEntry
from proxy.protocol.versions import versions_for

__all__ = [
    "BrokerEntry",
    "BrokerIdMismatch",
    "BrokerMetadataClient",
    "UnsupportedRequestError",
    "endpoints",
    "producer_settings",
    "protocol_range",
    "versions_for",
]
