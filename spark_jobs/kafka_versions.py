"""Kafka's apis, and which of their versions newer brokers reject. Imports only the standard library.

Kafka 4.0 removed the api versions from before Kafka 2.1 (KIP-896) and the apis for ZooKeeper. Kafka 4.1 removed the
early access versions of share groups (KIP-932). The source is the message definitions of kafka-clients 4.4.0, the
newest release known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_NAMES = """
Produce Fetch ListOffsets Metadata LeaderAndIsr StopReplica UpdateMetadata ControlledShutdown OffsetCommit
OffsetFetch FindCoordinator JoinGroup Heartbeat LeaveGroup SyncGroup DescribeGroups ListGroups SaslHandshake
ApiVersions CreateTopics DeleteTopics DeleteRecords InitProducerId OffsetForLeaderEpoch AddPartitionsToTxn
AddOffsetsToTxn EndTxn WriteTxnMarkers TxnOffsetCommit DescribeAcls CreateAcls DeleteAcls DescribeConfigs
AlterConfigs AlterReplicaLogDirs DescribeLogDirs SaslAuthenticate CreatePartitions CreateDelegationToken
RenewDelegationToken ExpireDelegationToken DescribeDelegationToken DeleteGroups ElectLeaders IncrementalAlterConfigs
AlterPartitionReassignments ListPartitionReassignments OffsetDelete DescribeClientQuotas AlterClientQuotas
DescribeUserScramCredentials AlterUserScramCredentials Vote BeginQuorumEpoch EndQuorumEpoch DescribeQuorum
AlterPartition UpdateFeatures Envelope FetchSnapshot DescribeCluster DescribeProducers BrokerRegistration
BrokerHeartbeat UnregisterBroker DescribeTransactions ListTransactions AllocateProducerIds ConsumerGroupHeartbeat
ConsumerGroupDescribe ControllerRegistration GetTelemetrySubscriptions PushTelemetry AssignReplicasToDirs
ListConfigResources DescribeTopicPartitions ShareGroupHeartbeat ShareGroupDescribe ShareFetch ShareAcknowledge
AddRaftVoter RemoveRaftVoter UpdateRaftVoter InitializeShareGroupState ReadShareGroupState WriteShareGroupState
DeleteShareGroupState ReadShareGroupStateSummary StreamsGroupHeartbeat StreamsGroupDescribe
DescribeShareGroupOffsets AlterShareGroupOffsets DeleteShareGroupOffsets StreamsGroupTopologyDescriptionUpdate
UnregisterController
"""

APIS: Sequence[str] = _NAMES.split()
"""Names of Kafka's apis; the index is the api key."""

SIDECAR_APIS = ("BrokerMetadata", "ClusterMetadata", "RegisterConsumer")
"""Names of the apis that sidecars serve beside Kafka's."""

REMOVED = 1 << 15
"""Lowest version of an api that was removed as a whole: greater than every possible version."""

_LOWEST_VERSIONS = {
    "4.0": {
        "Produce": 3, "Fetch": 4, "ListOffsets": 1, "LeaderAndIsr": REMOVED, "StopReplica": REMOVED,
        "UpdateMetadata": REMOVED, "ControlledShutdown": REMOVED, "OffsetCommit": 2, "OffsetFetch": 1,
        "CreateTopics": 2, "DeleteTopics": 1, "OffsetForLeaderEpoch": 2, "WriteTxnMarkers": 1,
        "DescribeAcls": 1, "CreateAcls": 1, "DeleteAcls": 1, "DescribeConfigs": 1, "AlterReplicaLogDirs": 1,
        "DescribeLogDirs": 1, "CreateDelegationToken": 1, "RenewDelegationToken": 1,
        "ExpireDelegationToken": 1, "DescribeDelegationToken": 1, "AlterPartition": 2,
    },
    "4.1": {
        "ShareGroupHeartbeat": 1, "ShareGroupDescribe": 1, "ShareFetch": 1, "ShareAcknowledge": 1,
    },
}  # fmt: skip

LOWEST_VERSIONS: Mapping[str, Mapping[int, int]] = {
    release: {APIS.index(name): version for name, version in lowest.items()}
    for release, lowest in _LOWEST_VERSIONS.items()
}
"""By release and api key, the lowest version that the release accepts. Only the release that raised it is listed; each
api is in one release."""
