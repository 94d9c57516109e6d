"""Real Kafka on this machine, for the demo, the tests and whoever wants to try something.

jars.py       the one resolver of every jar: pinned sets, checksums, one cache folder.
pins.py       what a pinned jar is, and the lock file that names them all.
download.py   fetching pinned jars, checked, resumable.
fetchers.py   the ordinary clients that do it: Ivy or Maven.
lock_jars.py  makes the lock file.
java.py       finding a Java that is new enough.
cluster.py    ``up``, ``down``, ``status`` of a KRaft cluster of one or three nodes.
sidecars.py   a sidecar in front of each node.
state.py      what is known about a cluster, and the file that holds it.
broker.py     configuration, format and command line of one node.
tools.py      command lines of Kafka's own Java tools.
archive.py    class-data archives: what makes a node start fast.
readiness.py  whether a node is ready.
process.py    processes that outlive this one, and are never mistaken for others.
ports.py      free ports.
workload.py   real clients that keep their own ledgers.
audit_reader.py  totals of what a sidecar wrote to the audit topic.
demo.py       from a real broker to a table: everything once, with the proof that the numbers are right.
"""
