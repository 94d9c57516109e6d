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

LOWEST_VERSIONS: Mapping[str, Mapping[int, int]] = {
    "4.0": {
        0: 3,  # Produce
        1: 4,  # Fetch
        2: 1,  # ListOffsets
        4: REMOVED,  # LeaderAndIsr
        5: REMOVED,  # StopReplica
        6: REMOVED,  # UpdateMetadata
        7: REMOVED,  # ControlledShutdown
        8: 2,  # OffsetCommit
        9: 1,  # OffsetFetch
        19: 2,  # CreateTopics
        20: 1,  # DeleteTopics
        23: 2,  # OffsetForLeaderEpoch
        27: 1,  # WriteTxnMarkers
        29: 1,  # DescribeAcls
        30: 1,  # CreateAcls
        31: 1,  # DeleteAcls
        32: 1,  # DescribeConfigs
        34: 1,  # AlterReplicaLogDirs
        35: 1,  # DescribeLogDirs
        38: 1,  # CreateDelegationToken
        39: 1,  # RenewDelegationToken
        40: 1,  # ExpireDelegationToken
        41: 1,  # DescribeDelegationToken
        56: 2,  # AlterPartition
    },
    "4.1": {
        76: 1,  # ShareGroupHeartbeat
        77: 1,  # ShareGroupDescribe
        78: 1,  # ShareFetch
        79: 1,  # ShareAcknowledge
    },
}
"""By release and api key, the lowest version that the release accepts. Only the release that raised it is listed; each
api is in one release."""
