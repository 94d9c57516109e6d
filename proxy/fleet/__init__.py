"""The cluster that this sidecar's broker belongs to, as the sidecar itself asks it; and the sidecars of its brokers.

Layers, each importing only those before it: ``scram`` (bytes, pure), ``security`` (librdkafka's settings),
``connection`` (one connection, with the requests of ``proxy.rpc``), ``client`` (the one that is kept), ``names`` and ``sources`` (what is looked
up on the host), ``schedule`` (when to look, pure).

Of quotas: ``protection`` and ``broker_limits`` (what follows from the answers, pure), ``quota_watch`` (the task that
asks and tells).

Of the fleet: ``record`` (what a sidecar writes of itself), ``sightings`` (which sidecars run) and ``view`` (what is
told of each broker), all pure; ``topic`` (the registry's, by librdkafka), ``registry`` (its thread), ``fleet_watch``
(the tasks that ask and tell).
"""
