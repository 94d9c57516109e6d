"""The cluster that this sidecar's broker belongs to, as the sidecar itself asks it; and the sidecars of its brokers.

Connections
scram.py          the client's side of SASL/SCRAM (pure).
security.py       TLS and SASL, from librdkafka's settings.
connection.py     one authenticated connection, with one request at a time (``proxy.rpc``).
client.py         the connection that is kept: to the sidecar's own broker where it runs, else to another one.

Quotas of the cluster
broker_limits.py  limits of connections in a broker's configuration (pure).
protection.py     which addresses get a quota without a limit, as they are the sidecar's own (pure).
sources.py        the addresses that this host connects from.
names.py          addresses of host names that have quotas.
schedule.py       when to ask next (pure).
quota_watch.py    asks for the quotas, and gives them to whoever acts by them.

The registry of sidecars
record.py         what a sidecar writes of itself (pure).
sightings.py      which sidecars run (pure).
view.py           what is told of each broker (pure).
topic.py          the registry's topic, by librdkafka.
registry.py       the thread that reads and writes it.
fleet_watch.py    keeps the view of brokers and sidecars up to date.
"""
