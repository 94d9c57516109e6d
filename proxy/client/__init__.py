"""What clients can ask a sidecar: which brokers there are (BrokerMetadata), and the levels of features.

    with BrokerMetadataClient("kafka-1.example:9092") as client:
        broker = client.check(1)
        versions = versions_for(protocol_range(broker))
        producer = Producer({"bootstrap.servers": …} | producer_settings(broker))

    with FeaturesClient("kafka-1.example:9092") as client:
        client.describe().finalized
        client.update([FeatureUpdate("brokerside.audit.event.schema", 2)], dry_run=True)

For programs that are not asyncio's; needs neither Spark nor observers. The consumer of groups that the sidecars
coordinate is in ``proxy.client.consumer``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.client.broker_metadata import BrokerMetadataClient
    from proxy.client.entries import endpoints, producer_settings, protocol_range
    from proxy.client.errors import BrokerIdMismatch, UnsupportedRequestError
    from proxy.client.features import FeaturesClient
    from proxy.features.records import FeatureUpdate
    from proxy.features.updates import UpdateResult
    from proxy.interceptors.broker_metadata import BrokerEntry
    from proxy.protocol.versions import versions_for
    from proxy.rpc.feature_messages import DescribedFeatures

_LOADED_WHEN_USED = {
    "BrokerEntry": "proxy.interceptors.broker_metadata",
    "BrokerIdMismatch": "proxy.client.errors",
    "BrokerMetadataClient": "proxy.client.broker_metadata",
    "DescribedFeatures": "proxy.rpc.feature_messages",
    "FeatureUpdate": "proxy.features.records",
    "FeaturesClient": "proxy.client.features",
    "UnsupportedRequestError": "proxy.client.errors",
    "UpdateResult": "proxy.features.updates",
    "endpoints": "proxy.client.entries",
    "producer_settings": "proxy.client.entries",
    "protocol_range": "proxy.client.entries",
    "versions_for": "proxy.protocol.versions",
}
"""Modules by the names that they have here: ``proxy.client.consumer`` loads none of these, and not asyncio."""

__all__ = [
    "BrokerEntry",
    "BrokerIdMismatch",
    "BrokerMetadataClient",
    "DescribedFeatures",
    "FeatureUpdate",
    "FeaturesClient",
    "UnsupportedRequestError",
    "UpdateResult",
    "endpoints",
    "producer_settings",
    "protocol_range",
    "versions_for",
]


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LOADED_WHEN_USED[name]), name)
