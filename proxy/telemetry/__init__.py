"""What the sidecar says about itself.

logs.py         JSON lines on stderr: bounded, escaped, without secrets.
definitions.py  every metric, defined once: name, labels, meaning, and which plain counters it reads.
metrics.py      the registry that a scrape renders.
reference.py    docs/metrics.md.
"""

from proxy.telemetry.logs import Repeated, configure_logging
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.reference import reference_markdown

__all__ = ["Metrics", "Repeated", "configure_logging", "reference_markdown"]
