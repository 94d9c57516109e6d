"""The jobs that turn the audit topic into tables. They share nothing with the proxy but the audit event's schema.

schemas.py    the audit envelope and every table, column by column.
io.py         the only reads and writes: Kafka source, exactly-once Delta writer.
parse.py      Kafka records in, good events and dead letters out (pure).
tables/       one pure module per table: ``DataFrame -> DataFrame``, the same for stream and backfill.
session.py    the Spark session, tuned for small batches on few cores.
run.py        wires a job: source, parse, tables, sink, progress.
query.py      the tables without a JVM: DuckDB over Delta.
"""
