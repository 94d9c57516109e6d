"""Consumer groups: ``group_members``, ``committed_offsets`` and ``end_offsets``, and of them ``groups`` and ``lag``."""

from __future__ import annotations

from spark_jobs.schemas.model import (
    BROKER,
    CLIENT_ID,
    CLIENT_IP,
    CLUSTER,
    LISTENER,
    PRINCIPAL,
    Column,
    Table,
    key_column,
    merged_column,
    sum_column,
)

_GROUP = key_column("group_id", "string", "Consumer, share or streams group.", source="group_id")
_TOPIC = key_column("topic", "string", "Topic; `id:<topic id>` if the name is not known.", source="topic")
_PARTITION = key_column("partition", "int", "Partition.", source="partition")
_MEMBER_ROW = "On the row without a topic; 0 on rows of a topic."
_COMMIT_MINUTE = key_column("minute", "timestamp", "Minute in which the broker took the offset.", "UTC", "ts")

GROUP_MEMBERS = Table(
    "group_members",
    "Which members a group had, by day, as the sidecar of its coordinator saw them. A member has one row whose `topic` "
    "is NULL, and one for each topic of which it committed offsets, or fetched records over the same connection.",
    (
        key_column("day", "date", "Day of the events; the table is partitioned by it.", "UTC", "ts_last"),
        CLUSTER, BROKER, LISTENER, _GROUP,
        key_column("topic", "string", "Topic; NULL on the row that counts requests.",
                   source="committed[].topic, fetched[]"),
        key_column("member_id", "string", "Member of the group; NULL of commits without membership."),
        key_column("group_instance_id", "string", "Static member (KIP-345); or NULL."),
        PRINCIPAL, CLIENT_ID, CLIENT_IP,
        merged_column("last", "group_type", "string", "`classic`, `consumer`, `share`, `streams`, or NULL."),
        merged_column("last", "generation_id", "int", "Last generation, or member epoch (KIP-848), that the member"
                      " knew; NULL: none."),
        sum_column("requests", f"Requests of membership and commits. {_MEMBER_ROW}", "requests"),
        sum_column("commits", f"Requests in which the broker took offsets. {_MEMBER_ROW}", "requests"),
        sum_column("offsets_not_listed", "Offsets after the first 1,000 of a commit, or beyond the bounds of an"
                   f" interval. {_MEMBER_ROW}", "offsets"),
        merged_column("min", "first_seen", "timestamp", "When the first of them was answered.", "UTC", "ts_first"),
        merged_column("max", "last_seen", "timestamp", "When the last of them was answered.", "UTC", "ts_last"),
        merged_column("max", "committed_at", "timestamp", "When it last committed an offset of the topic; NULL: never,"
                      " and on the row without one.", "UTC", "committed[].ts"),
    ),
    example="SELECT group_id, member_id, client_id, generation_id, requests, commits FROM group_members"
    " WHERE topic IS NULL ORDER BY ALL",
    order="last_seen",
)  # fmt: skip

COMMITTED_OFFSETS = Table(
    "committed_offsets",
    "Offsets that groups committed, by minute: the last one of each partition. What was committed before the sidecar "
    "of the group's coordinator ran, or without passing it, is not in it.",
    (
        key_column("day", "date", "Day of `minute`; the table is partitioned by it.", "UTC", "ts"),
        _COMMIT_MINUTE, CLUSTER, _GROUP, _TOPIC, _PARTITION,
        merged_column("last", "committed_offset", "bigint", "Offset of the next record to be read.", "offsets",
                      "committed[].offset"),
        merged_column("last", "transactional", "boolean", "Committed in a transaction: it counts once that commits, and"
                      " not at all if it is aborted.", source="committed[].transactional"),
        merged_column("max", "committed_at", "timestamp", "When the broker took it.", "UTC", "committed[].ts"),
    ),
    example="SELECT group_id, topic, partition, max(committed_offset) AS committed_offset FROM committed_offsets"
    " GROUP BY ALL ORDER BY ALL",
    retention_days=30,
    order="committed_at",
)  # fmt: skip

END_OFFSETS = Table(
    "end_offsets",
    "Ends of partitions, by minute: high watermarks of fetches, and what follows acknowledged records. Minutes in "
    "which a partition was neither written nor fetched have no row.",
    (
        key_column("day", "date", "Day of `minute`; the table is partitioned by it.", "UTC", "ts"),
        key_column("minute", "timestamp", "Minute in which the broker said so.", "UTC", "ts"),
        CLUSTER, _TOPIC, _PARTITION,
        merged_column("last", "end_offset", "bigint", "Offset of the next record to be written.", "offsets",
                      "end_offsets[].offset"),
        merged_column("max", "end_offset_at", "timestamp", "Second in which the broker said so.", "UTC",
                      "end_offsets[].ts"),
    ),
    example="SELECT topic, partition, max(end_offset) AS end_offset FROM end_offsets GROUP BY ALL ORDER BY ALL",
    retention_days=30,
    order="end_offset_at",
)  # fmt: skip

GROUPS = Table(
    "groups",
    "Who reads what as which group, by day: members with the topics that they read. A member of which no topic is "
    "known has one row whose `topic` is NULL. Members of a group speak to its coordinator, and fetch from any broker: "
    "`topic_source` says how sure the topic is.",
    (
        Column("day", "date", "Day; the table is partitioned by it.", "UTC"),
        Column("cluster_id", "string", "The Kafka cluster's own id."),
        Column("group_id", "string", "Consumer, share or streams group."),
        Column("group_type", "string", "`classic`, `consumer`, `share` or `streams`; NULL: its requests did not say."),
        Column("topic", "string", "Topic that it reads; NULL: none is known."),
        Column("topic_source", "string", "`commit`: the member committed offsets of it. `connection`: a connection of"
               " the member fetched it. `client`: a client of the same principal, client id and address fetched it that"
               " day, and was in no other group. `shared_client`: likewise, but in several groups: one of them read"
               " it."),
        Column("principal", "string", "Who the member is, `User:<name>`."),
        Column("client_id", "string", "Client id chosen by the client; may be NULL."),
        Column("client_ip", "string", "Address of the client."),
        Column("member_id", "string", "Member of the group; NULL of commits without membership, as by"
               " `kafka-consumer-groups --reset-offsets`."),
        Column("group_instance_id", "string", "Static member (KIP-345); or NULL."),
        Column("generation_id", "int", "Last generation, or member epoch (KIP-848), that the member knew; NULL: none."),
        Column("requests", "bigint", "Requests of membership and commits of this member; on each of its rows.",
               "requests"),
        Column("commits", "bigint", "Those in which the broker took offsets; likewise.", "requests"),
        Column("committed_at", "timestamp", "When the member last committed an offset of the topic.", "UTC"),
        Column("first_seen", "timestamp", "When the first of the requests was answered.", "UTC"),
        Column("last_seen", "timestamp", "When the last of them was answered.", "UTC"),
    ),
    example="SELECT group_id, topic, topic_source, principal, client_id, last_seen FROM groups ORDER BY ALL",
    derived_from=("group_members", "traffic"),
)  # fmt: skip

LAG = Table(
    "lag",
    "How far behind groups are, by partition, for each minute in which either the group committed an offset or the end "
    "of the partition was seen. In a minute without a row nothing changed as far as was seen: the last row holds. "
    "A partition of a group is in it for seven days after the group's last commit.",
    (
        Column("day", "date", "Day of `minute`; the table is partitioned by it.", "UTC"),
        Column("minute", "timestamp", "Minute at whose end this was so.", "UTC"),
        Column("cluster_id", "string", "The Kafka cluster's own id."),
        Column("group_id", "string", "The group."),
        Column("topic", "string", "Topic; `id:<topic id>` if the name is not known."),
        Column("partition", "int", "Partition."),
        Column("committed_offset", "bigint", "Last offset that the group committed: that of the next record it reads.",
               "offsets"),
        Column("committed_at", "timestamp", "When it did so.", "UTC"),
        Column("transactional", "boolean", "It did so in a transaction, which may have been aborted."),
        Column("end_offset", "bigint", "Last end of the partition that was seen; NULL: none.", "offsets"),
        Column("end_offset_at", "timestamp", "When that was.", "UTC"),
        Column("lag", "bigint", "`end_offset` − `committed_offset`, and 0 where the group committed after the end was"
               " seen; NULL: not known.", "offsets"),
        Column("unknown_because", "string", "Why `lag` is NULL. `no_end`: no end was seen. `end_below_commit`: an end"
               " that was seen more than ten seconds after the commit is below it. The topic was deleted and created"
               " again, or an unclean leader election moved the end back; or the clocks of two sidecars differ."),
    ),
    example="SELECT minute, group_id, topic, sum(lag) AS lag FROM lag GROUP BY ALL ORDER BY ALL",
    retention_days=30,
    derived_from=("committed_offsets", "end_offsets"),
)  # fmt: skip
