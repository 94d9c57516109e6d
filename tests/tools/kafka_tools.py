"""Kafka's own Java tools, one after another in one JVM: most of the time of a tool is the start of its JVM."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Self

from proxy.local.archive import archive_of, archive_options
from proxy.local.broker import broker_jars, class_path
from proxy.local.jars import java
from proxy.local.tools import JVM, TOOLS

SOURCE = Path(__file__).with_name("KafkaTools.java")
KAFKA = "4.3.1"
TIMEOUT = 120.0
"""Seconds for one tool; then the JVM is killed."""


class KafkaTools:
    """The JVM, which ends with the block. Output of a tool that still runs on a thread may be in the next one's."""

    def __enter__(self) -> Self:
        jars = broker_jars(KAFKA, progress=False)
        archive = archive_options(archive_of(java(), jars))
        self._process = subprocess.Popen(
            [str(java()), *JVM, *archive, "-Dstdout.encoding=UTF-8", "-cp", class_path(jars), str(SOURCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=TIMEOUT)
        finally:
            self._process.kill()
            self._process.wait()

    def run(self, name: str, *args: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a tool of ``proxy.local.tools`` that reads ``text``. Raises TimeoutError, with the JVM killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is not None:
            raise TimeoutError(f"{name}: the JVM ended in an earlier tool")
        command = {"main": TOOLS[name], "args": args, "input": text}
        watchdog = threading.Timer(TIMEOUT, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise TimeoutError(f"{name} {' '.join(args)}: no answer, and the JVM has ended")
        answer = json.loads(line)
        return subprocess.CompletedProcess([name, *args], answer["status"], answer["stdout"], answer["stderr"])
