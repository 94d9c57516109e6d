"""A process that something holds up ends all the same."""

import subprocess
import sys

import pytest

HUNG = """
import threading
from proxy.net.forced_exit import force_exit_after
from proxy.telemetry import configure_logging

configure_logging("info")
force_exit_after({seconds})
threading.Thread(target=threading.Event().wait, args=({hangs},)).start()  # not a daemon: the interpreter joins it
"""


@pytest.mark.promise(
    "restart.md", "A process that something holds up at its end exits all the same, with a line in the log."
)
def test_what_is_held_up_ends_with_a_line_that_says_so() -> None:
    code = HUNG.format(seconds=0.1, hangs=3600)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert '"event": "exit_forced", "after_s": 0.1' in done.stderr
