"""The jobs that turn the audit topic into tables. They share nothing with the proxy but the schema of the audit event.

Jobs
run.py             the entry points ``run`` and ``backfill``, called with plain values.
streaming_job.py   one streaming query from the topic into the tables; progress.py: what a job reports.
backfill.py        computes days again from the topic and replaces their rows.
readers.py         keeps a job registered with the sidecars, and checks that it reads the finalized level;
                   reader_records.py: its records (pure).
maintenance.py     decides when derived tables are computed, and when tables are compacted and vacuumed.
derived_tables.py  computes the tables that are made from other tables.
compaction.py      compacts small files, merges rows of equal keys, and deletes expired days.
sink.py            writes each batch to the tables exactly once.
table_root.py      opens the tables below one root together with their checkpoint, or refuses the job.
checkpoint.py      checks that a checkpoint belongs to its tables.
session.py         the Spark session, tuned for small batches on few cores.
class_archive.py   makes the archive of Java's classes, with which the session starts in two thirds of the CPU time.
error_messages.py  explains errors of a Spark query in one sentence; errors.py: the exceptions of this package.

From records to rows
kafka.py           reads the audit topic with Spark.
batch.py           rows of all tables of some records: one Spark stage that decodes, and one that adds up.
decode.py          from Kafka records to partial rows of all streamed tables, in Spark's Python workers (pure).
parse.py           parses the value of a record into an envelope, or says why it is a dead letter (pure).
authentication.py  verifies the signatures of audit records, and signs the records of readers.
partial_rows.py    partial rows of all streamed tables: adds them up by key, and makes tables of them (pure).
dedup_ranges.py    written event numbers as ranges by sidecar boot: finds duplicates and conflicts (pure).
tables/            one module for each table. Streamed ones are pure, event to partial rows; derived ones are SQL.
computation.py     DuckDB as it computes derived tables: their inputs as views, in bounded memory.
stored_table.py    Delta tables and all commits to them, by delta-rs: each batch exactly once.
storage_options.py options of delta-rs for a storage, from Spark's settings (pure).
io.py              the same for Spark: data frames to and from Delta tables, and small files.

Schemas and definitions
events.py          the fields of the audit event; event_structs.py: the same as msgspec structs.
schemas/           every table with its columns; spark_types.py: the same as types of Arrow and Spark.
definitions/       what users declare: prices, owners, objectives, mirrors, retention.
kafka_errors.py    Kafka's error codes: names, and which of them are no failure.
kafka_versions.py  Kafka's apis, and which of their versions newer brokers reject.

Readers of the tables, without a JVM
query.py           queries by DuckDB; views.py: views with merged rows; render.py: rows as text.
saved_queries.py   the queries of ``brokerside query --ask``, with their SQL.
report/            the HTML report of the tables.
export/            exports the tables to the formats of other systems.
"""
