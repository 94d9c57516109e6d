"""``python -m proxy`` is ``brokerside``."""

from proxy.cli import main

main()
