"""The jobs that turn the audit topic into tables. They share nothing with the proxy but the audit event's schema.

events.py      the audit event as the jobs read it; schemas/: every table, column by column; structs.py: as Spark's.
definitions/   what users declare: prices, owners, objectives, mirrors, retention.
authentication.py  which records the sidecars have signed.
parse.py       Kafka records in, good envelopes and dead letters out (pure).
tables/        one pure module per table: ``DataFrame -> DataFrame``; registry.py says what each is made of.
merge.py       stored rows with equal keys become one.
io.py          the only reads and writes: Kafka source, exactly-once Delta writer.
checkpoint.py  what a checkpoint belongs to, and when going on from it would be wrong.
session.py     the Spark session, tuned for small batches on few cores.
run.py         the entrance to the jobs; stream.py: one job at work, from source to sink.
failures.py    what Spark says when a query fails, in one sentence.
query.py       the tables without a JVM: DuckDB over Delta; render.py: rows as text.
"""
