"""Threads that let the event loop have the CPU as soon as it has work.

A thread that has the CPU keeps it for a slice of time, while another wakes up: on one CPU, requests wait until the
audit has encoded and compressed what it has. Since 6.12 Linux lets a thread that wakes up interrupt one whose slice is
longer. It never lets one with SCHED_BATCH interrupt another so. Neither changes how much of the CPU a thread gets where
all want it.
"""

class BackgroundThreads:
    """Inside of ``with``, the threads that the current one starts are such threads, and so are those that they start.

    The current one is, too, until the end of ``with``. Nothing changes for a thread to which somebody has given another
    policy than SCHED_OTHER, nor where the system refuses it.
    """

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...
