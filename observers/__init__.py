"""Observers (KIP-388): code that is told about every exchange and can never touch one.

api.py        the contract: what an observer implements and what it is given.
dispatch.py   the only door from the data path: bounded hand-off to one thread per observer, containment, counts.
event.py      the audit event, level 1: its fields, its envelope, its encoding.
audit.py      the built-in observer: exchanges in, audit events out.
sink.py       the Kafka producer behind it: idempotent, bounded, every event accounted for.

Nothing here imports the proxy: observers see exchanges through the protocols of ``api.py`` alone.
"""
