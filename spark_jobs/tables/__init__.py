"""The rows of each table. All of it is pure.

Streamed tables: from events to partial rows; stream and backfill use the same functions.
requests.py          sums of requests and rollups, for ``traffic``, ``latency`` and ``clients``.
connections.py       one row for each connection; throttles.py: which connections met a quota.
changes.py           who changed what, and who was denied what.
group_events.py      members of groups, offsets they committed, ends of partitions.
inventory.py         which topics existed.
produced.py          batches written to topics of mirrors.
completeness.py      events that arrived or were lost.

Derived tables: made of other tables by DuckDB's SQL.
registry.py          maps each table to its query, its inputs, and the definitions it uses.
member_topics.py     who reads what as which group.
lag.py               how far behind groups are.
topics.py            when each topic was last used.
mirror_check.py      whether a mirror has what was produced.
coverage.py          how much of a cluster its sidecars observed.
slo.py               how each objective is met.
cost.py              prices applied to usage; usage.py: measures the usage.
quota_advice.py      quotas that would have admitted the connections that were opened.
unmatched.py         definitions that have matched no row so far.
sql.py               helpers: literals, conditions and columns as text of DuckDB's SQL.
"""
