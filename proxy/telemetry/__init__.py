"""What the sidecar says about itself.

logs.py           JSON lines on stderr: bounded, escaped, without secrets.
log_writer.py     the thread that writes them, and what becomes of lines that nobody reads.
snapshot.py       counts as plain values: taken in each process, sent, added up.
family.py         what one metric is.
definitions.py    every metric, defined once: name, labels, meaning, and its part of a snapshot.
limit_metrics.py  those of the limits on connections.
audit_metrics.py  those of the audit.
metrics.py        the text that a scrape gets.
reference.py      docs/metrics.md.
"""

from proxy.telemetry.logs import Repeated, configure_logging

__all__ = ["Repeated", "configure_logging"]
