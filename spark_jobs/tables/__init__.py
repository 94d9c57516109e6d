"""One pure module per table: data frames in, the table's rows out; the same for stream and backfill.

registry.py      which function makes which table, and of what.
request_measures.py  what requests and rollups add up to, for ``traffic``, ``latency`` and ``clients``.
traffic.py       who did how much; latency.py: how long answers took.
clients.py       which clients there are, and what newer brokers would refuse them.
connections.py   one row for each connection; throttles.py: whose connections met which limit.
quota_advice.py  limits that would have let through the connections that came.
inventory.py     which topics there were; topics.py: when each was last used.
produced.py      batches written to topics of mirrors; mirror_check.py: whether they arrived.
completeness.py  what arrived, and what is said to be lost; coverage.py: how much of a cluster its sidecars saw.
slo.py           how each objective is met.
cost.py          prices on what was used; usage.py counts it.
unmatched.py     what is declared and has met nothing so far.
columns.py       what the functions share: a table's own columns, and SQL of instants.
"""
