"""The messages of the sidecar's own apis (``proxy.protocol.private``), as ``schema_table`` has Kafka's.

By name, because their api keys are configured (``private.api.key.base``). No version is flexible. ``<…>`` is an array
whose count is an int16. Those that are pushed to consumers are not among them: they are no exchanges of a client.
"""

from __future__ import annotations

PRIVATE_REQUESTS: dict[str, str] = {
    "BrokerMetadata": "0-0 - NodeIds:[int32]?",
    "ClusterMetadata": "0-1 - GroupId:string@1-1",
    "RegisterConsumer": (
        "0-2 - GroupId:string ConsumerId:string TopicCount:string AutoCommit:bool AutoOffsetReset:string "
        "SessionTimeoutMs:int32 ProtocolLevel:int16@2-2"
    ),
}

PRIVATE_RESPONSES: dict[str, str] = {
    "BrokerMetadata": (
        "0-0 - Brokers:[{NodeId:int32 Host:string Port:int32 ProtocolVersionMin:int32 ProtocolVersionMax:int32 "
        "Tags:[{Key:string Value:string}]}]"
    ),
    "ClusterMetadata": "0-1 - ErrorCode:int16 CoordinatorId:int32 Brokers:<{Id:int32 Host:string Port:int32}>",
    "RegisterConsumer": "0-2 - ErrorCode:int16 CoordinatorId:int32@1-2 Generation:int32@1-2",
}
