"""What becomes of log lines where nobody reads them."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from proxy.telemetry.log_writer import MAX_PARTIAL_LINE, LogStream, LogWriter

SMALLEST_PIPE = 4096
LINE = "x" * 99
PATIENCE = 60


class Pipe:
    """A pipe with a writer at its end. ``flowed``: what the writer has said of dropped lines."""

    def __init__(self, max_queued: int) -> None:
        self.read, self.write = os.pipe()
        fcntl.fcntl(self.write, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
        self.flowed: SimpleQueue[dict[str, int]] = SimpleQueue()
        self.writer = LogWriter(self.write, lambda dropped: self.flowed.put(dict(dropped)), max_queued)

    def fill(self) -> None:
        """Leave no room: what is queued from now on stays there, from its first line."""
        assert os.write(self.write, bytes(SMALLEST_PIPE)) == SMALLEST_PIPE

    def drain(self) -> None:
        assert len(os.read(self.read, SMALLEST_PIPE)) == SMALLEST_PIPE

    def lines(self, count: int) -> list[str]:
        with open(self.read, closefd=False) as file:
            return [file.readline() for _ in range(count)]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(max_queued=1000)
    yield pipe
    os.set_blocking(pipe.read, False)
    while not pipe.writer.flush(0):
        try:
            os.read(pipe.read, SMALLEST_PIPE)
        except BlockingIOError:
            threading.Event().wait(0.001)
    os.close(pipe.read)
    os.close(pipe.write)


@pytest.mark.promise("logging.md", "Log lines beyond the bound are dropped, counted and reported.")
def test_a_full_pipe_holds_nobody_up_and_lines_beyond_the_bound_are_counted(pipe: Pipe) -> None:
    for number in range(5):
        pipe.writer.enqueue("info", f"{number}")
    assert pipe.lines(5) == [f"{number}\n" for number in range(5)], "whole and in order"
    assert pipe.writer.flush(10)
    assert pipe.writer.dropped() == {}
    pipe.fill()
    for _ in range(200):
        pipe.writer.enqueue("info", LINE)
    pipe.writer.enqueue("error", LINE)
    assert not pipe.writer.flush(0.05), "nobody waits longer than asked for the last lines"
    dropped = pipe.writer.dropped()
    assert dropped == {"info": 190, "error": 1}
    assert pipe.flowed.empty()

    pipe.drain()
    assert pipe.lines(10) == [LINE + "\n"] * 10
    assert pipe.flowed.get(timeout=240) == dropped
    assert pipe.writer.dropped() == dropped, "a counter, which stays"
    pipe.writer.enqueue("info", "more")
    assert pipe.lines(1) == ["more\n"]
    assert pipe.writer.flush(10)
    assert pipe.flowed.empty(), "it is said once"
    pipe.writer.enqueue("warning", "x" * 1000)
    assert pipe.writer.dropped() == {**dropped, "warning": 1}, "longer than the queue"


def test_what_is_printed_comes_out_by_lines_and_a_print_that_never_ends_its_line_is_bounded(pipe: Pipe) -> None:
    stream = LogStream(pipe.writer, "error")
    print("one\ntwo", file=stream)
    stream.write("half")
    stream.flush_partial_line()
    stream.flush_partial_line()
    assert pipe.lines(3) == ["one\n", "two\n", "half\n"]
    with open("/dev/full", "wb") as full:
        writer = LogWriter(full.fileno(), lambda dropped: None)
        stream = LogStream(writer, "error")
        for _ in range(3):
            stream.write("x" * MAX_PARTIAL_LINE)
        assert sys.getsizeof(stream._partial_line) <= 2 * MAX_PARTIAL_LINE
        assert writer.flush(10)


SAYS = """
import sys, threading, warnings
from proxy.telemetry import configure_logging
configure_logging("info")
print("printed")
print("printed to stderr", file=sys.stderr)
warnings.warn("warned")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
print("half a line", end="")
raise ValueError("the last word")
"""


@pytest.mark.promise("logging.md", "Lines that Python prints are in the log before the process ends.")
def test_all_that_a_process_says_is_written_before_it_ends() -> None:
    done = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[:2] == ["printed", "printed to stderr"]
    assert json.loads(lines[2])["logger"] == "py.warnings"
    assert "ZeroDivisionError: division by zero" in lines
    assert lines[-2:] == ["ValueError: the last word", "half a line"]
