"""A scripted load, and books that are kept of it in plain Python: what every table must hold, to the unit.

acts.py        what happens: runs of sidecars, connections, calls.
script.py      who and what there is, and twelve hours of two clusters of three brokers, on two days.
wire.py        how the sidecars report it: events, envelopes, records of two audit topics, with all that goes wrong.
books.py       one book for each table, kept from the acts; nothing of the jobs is imported there.
definitions/   prices, owners, objectives, a mirror: what the job is given.
build.py       writes the topics, runs the job: ``python -m tests.ledger.build DIR`` for queries by hand.
tables.py      the same tables without Spark and Kafka, for tests of what reads them.
examples.py    docs/answers*.md: every query with its answer.
"""
