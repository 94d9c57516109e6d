"""The jobs that turn the audit topic into tables. They share nothing with the proxy but the audit event's schema.

Jobs
run.py             the entrance: stream and backfill, called with plain values.
streaming_job.py   one streaming query, from the topic into the tables; progress.py: what a job reports.
backfill.py        some days computed again, in place of what is there.
maintenance.py     decides when derived tables are computed and when tables are compacted and vacuumed.
derived_tables.py  computes the tables that are made from other tables.
compaction.py      joins small files, merges rows of one key, and deletes days beyond their retention.
sink.py            writes each batch to the tables, exactly once.
table_root.py      opens the tables below one root together with their checkpoint, or refuses to.
checkpoint.py      what a checkpoint belongs to, and when going on from it would be wrong.
session.py         the Spark session, tuned for small batches on few cores.
error_messages.py  one sentence for each known failure of a Spark query; errors.py: the exceptions of the package.

From records to rows
kafka.py           the audit topic, as Spark reads it.
authentication.py  which records the sidecars have signed.
parse.py           Kafka records in, good envelopes and dead letters out (pure).
dedup_ranges.py    the event numbers already written, as ranges by sidecar run: removes duplicates, finds conflicts.
tables/            one pure module per table: ``DataFrame -> DataFrame``.
merge.py           stored rows with equal keys become one.
io.py              Delta tables that take each batch exactly once, and small files.

What is known before anything runs
events.py          the audit event as the jobs read it.
schemas/           every table, column by column; spark_types.py: events and tables as Spark types.
definitions/       what users declare: prices, owners, objectives, mirrors, retention.
kafka_versions.py  Kafka's apis, and which of their versions newer releases refuse.

Readers of the tables, without a JVM
query.py           DuckDB over Delta; views.py: one row for each key; render.py: rows as text.
saved_queries.py   the queries of ``brokerside query --ask``, with their SQL.
report/            one page of HTML that shows what the tables say.
export/            the tables in the words of other systems.
"""
