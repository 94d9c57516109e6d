"""The cluster that this sidecar's broker belongs to, as the sidecar itself asks it; and the sidecars of its brokers.

Connections
scram.py          the client's side of SASL/SCRAM (pure).
security.py       TLS and SASL, from librdkafka's settings; internal_security.py: those of a sidecar, read again.
connection.py     one authenticated connection, with one request at a time (``proxy.rpc``).
client.py         the connection that is kept: to the sidecar's own broker where it runs, else to another one.

Quotas of the cluster
broker_limits.py  limits of connections in a broker's configuration (pure).
self_exemption.py which of the sidecar's own addresses need a quota without a limit (pure).
local_addresses.py  the addresses that this host connects to the brokers from.
host_resolver.py  the addresses of host names that have quotas.
schedule.py       when to poll next (pure).
quota_poller.py   polls the quotas, and reports changes.

Topics of the sidecars
topic_spec.py     their names and settings, and what a record is (pure).
topic_client.py   what all of librdkafka's clients of them have in common.
topic_creation.py creates one.
topic_consumer.py reads a partition of one.
compacted_topic.py  one with one partition: reads and writes it.
topic_reader.py   the thread that waits for records of one.
topic_thread.py   the thread that handles them, and writes some.
fenced_writer.py  writes a partition as its only writer.
topic_commands.py what the command reads and writes in them.
election.py       elects the one sidecar that writes to a partition (pure).

The registry of sidecars
sidecar_record.py what a sidecar writes about itself (pure).
membership.py     which sidecars and readers run (pure).
suspicion.py      which of them have been killed, by a connection.
view.py           what BrokerMetadata returns of each broker (pure).
registry.py       the registry's thread.
identity.py       whether broker.id is that of the broker behind listeners with SASL or TLS (pure).
fleet_poller.py   keeps the view of brokers and sidecars up to date.
succession.py     when a successor registers in place of its predecessor.
later_run.py      a later run that is no successor: two sidecars with one broker.id.

Feature versions of the fleet
features_thread.py  the thread of the topic with the finalized levels.
applied_epoch.py  which epoch all processes of a sidecar have applied (pure).
registered_features.py  what the registry says about features (pure).
feature_updates.py  updates that clients ask this sidecar for.
feature_poller.py follows the finalized levels, and is the controller where the election says so.

Groups of consumers (``proxy.coordinator``)
group_cluster.py  all that their coordinator has to do with the cluster.
group_elections.py  which sidecar holds which partition of their topic (pure).
group_poller.py   holds partitions, as the elections say.
group_partitions.py  reads and writes the partitions that are held.
group_metadata.py with what a transaction commits offsets of a group.
broker_queries.py many questions to one broker, in few requests.
group_queries.py  asks for committed offsets, and for members of Kafka's own coordinators.
topic_watch.py    the topics that groups subscribe to.
boottime.py       the clock of their leases.
"""
