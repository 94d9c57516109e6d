"""Kafka's apis, and which of their versions newer releases refuse. Imports nothing but Python.

Brokers of Kafka 4.0 know only what is at least as new as Kafka 2.1 (KIP-896), and no longer what served ZooKeeper;
those of 4.1 do not know the early access of share groups (KIP-932) any more. This is what the message definitions of
kafka-clients 4.4.0 say, the newest known here.
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
"""Kafka's names of its apis, by api key."""

REMOVED = 1 << 15
"""In place of the lowest version of an api that is refused as a whole: above every version there can be."""

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
"""The lowest version that is accepted, by api key, of each release that raised it; an api is in one release alone."""
