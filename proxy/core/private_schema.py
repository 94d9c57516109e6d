"""The messages of the sidecar's own apis (``proxy.protocol.private``), as ``schema_table`` has Kafka's.

By name, because their api keys are configured (``private.api.key.base``). No version is flexible.
"""

from __future__ import annotations

PRIVATE_REQUESTS: dict[str, str] = {
    "BrokerMetadata": "0-0 - NodeIds:[int32]?",
}

PRIVATE_RESPONSES: dict[str, str] = {
    "BrokerMetadata": (
        "0-0 - Brokers:[{NodeId:int32 Host:string Port:int32 ProtocolVersionMin:int32 ProtocolVersionMax:int32 "
        "Tags:[{Key:string Value:string}]}]"
    ),
}
