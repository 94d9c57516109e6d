"""The rows of each table. Streamed tables are made of data frames, and stream and backfill use the same functions;
derived tables are made of other tables by DuckDB's SQL. All of it is pure.

registry.py          maps each table to its function, its inputs, and the definitions it uses.
request_measures.py  sums of requests and rollups, for ``traffic``, ``latency`` and ``clients``.
traffic.py           who transferred how much; latency.py: how long responses took.
clients.py           which clients there are, and which of their requests newer brokers reject.
connections.py       one row for each connection; throttles.py: which connections met a quota.
changes.py           who changed what, and who was denied what.
groups.py            members of groups, offsets they committed, ends of partitions.
member_topics.py     who reads what as which group.
lag.py               how far behind groups are.
quota_advice.py      quotas that would have admitted the connections that were opened.
inventory.py         which topics existed; topics.py: when each was last used.
produced.py          batches written to topics of mirrors; mirror_check.py: whether the mirror has them.
completeness.py      events that arrived or were lost; coverage.py: how much of a cluster its sidecars observed.
slo.py               how each objective is met.
cost.py              prices applied to usage; usage.py: measures the usage.
unmatched.py         definitions that have matched no row so far.
columns.py           helpers for streamed tables: their columns, and SQL of time intervals.
sql.py               helpers for derived tables: literals, conditions and columns as text of DuckDB's SQL.
"""
