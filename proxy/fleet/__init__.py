"""The cluster that this sidecar's broker belongs to, as the sidecar itself asks it.

Layers, each importing only those before it: ``messages`` and ``scram`` (bytes, pure), ``security`` (librdkafka's
settings), ``connection`` (one connection), ``client`` (the one that is kept), ``names`` and ``sources`` (what is looked
up on the host), ``protection`` and ``broker_limits`` (what follows from the answers, pure), ``schedule`` (when to look,
pure), ``quota_watch`` (the task that asks and tells).
"""
