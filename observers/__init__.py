"""Observers (KIP-388): code that is told about every exchange and can never touch one.

api.py        the contract: what an observer implements and what it is given.
dispatch.py   the only door from the data path: constructs, configures, feeds and closes observers.
lane.py       one observer's own thread: bounded queue, containment, counts; breaker.py leaves a broken one alone.
views.py      the read-only structs (KIP-388) of an exchange: over its kept bodies, else over the facts that were read.

event.py      the audit event, level 1: its fields, its envelope, its encoding; reference.py writes its page in docs.
audit.py      the built-in observer: exchanges and throttle reports in, audit events out.
translate.py  from either to encoded events, and which exchanges give none (pure); compiled.pyx is its fast twin.
batch.py      blocks of encoded events, and the records they become (pure).
topics.py     topic ids to names.
sink.py       the Kafka producer: idempotent, bounded, every event accounted for.
cluster.py    admin calls over the INTERNAL listener.
errors.py     the one error that is meant for a person.

Of the proxy nothing is imported here but its pure core; observers see exchanges through the protocols of ``api.py``.
"""
