"""All tests, and the tools that measure and attack the sidecar."""

import os
import sys
from pathlib import Path

if sys.dont_write_bytecode:
    # Pytest, and each of the hundreds of sidecars and Spark workers of a run, would compile all packages again.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".brokerside/bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
