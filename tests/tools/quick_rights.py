"""``python -m tests.tools.quick_rights ARGS``: ``brokerside ARGS``, which asks every half second what consumers may do.

In the product it does so every half minute.
"""

from __future__ import annotations

from proxy.cli import main as brokerside
from proxy.net import consumers

INTERVAL = 0.4, 0.6


def main() -> None:
    """Run the command."""
    consumers.RIGHTS_INTERVAL = INTERVAL
    brokerside()


if __name__ == "__main__":
    main()
