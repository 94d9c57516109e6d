"""``python -m tests.tools.quick_return ARGS``: ``brokerside ARGS``, whose leader's sidecar takes a partition back soon.

In the product it has to run for 30 seconds before.
"""

from __future__ import annotations

from proxy.cli import main as brokerside
from proxy.fleet import election

RETURN_AFTER_MS = 3000


def main() -> None:
    """Run the command."""
    election.RETURN_AFTER_MS = RETURN_AFTER_MS
    brokerside()


if __name__ == "__main__":
    main()
