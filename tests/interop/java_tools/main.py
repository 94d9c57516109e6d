"""The Java console tools: see ``tests.interop`` for what every client program does.

What was produced and committed is what the broker says, for the tools do not report it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.tools.kafka_tools import KafkaTools

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def main() -> None:
    bootstrap, topic, group, client_id, partitions = sys.argv[1:]
    lines = sys.stdin.read().splitlines()
    server = ("--bootstrap-server", bootstrap)
    with tempfile.TemporaryDirectory() as folder, KafkaTools() as tools:

        def run(name: str, *args: str, text: str = "") -> str:
            """What the tool prints; what it says on stderr is passed on."""
            done = tools.run(name, *args, text=text)
            sys.stderr.write(done.stderr)
            done.check_returncode()
            return done.stdout

        properties = Path(folder) / "client.properties"
        settings = [f"client.id={client_id}"]
        if ca := os.environ.get("TLS_CA"):
            settings += ["security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={ca}"]
        properties.write_text("\n".join(settings))
        common = (*server, "--command-config", str(properties))
        run("topics", *common, "--create", "--if-not-exists", "--topic", topic, "--partitions", partitions)
        assert topic in run("topics", *common, "--list").splitlines()
        described = run("topics", *common, "--describe", "--topic", topic)
        for n, codec in enumerate(CODECS):
            run(
                "console-producer", *common, "--topic", topic, "--compression-codec", codec,
                "--reader-property", "parse.key=true", text="\n".join(lines[n :: len(CODECS)]),
            )  # fmt: skip
        consumed = run(
            "console-consumer", *common, "--topic", topic, "--group", group, "--from-beginning",
            "--max-messages", str(len(lines)), "--formatter-property", "print.key=true",
        ).splitlines()  # fmt: skip
        offsets = run("groups", *common, "--describe", "--offsets", "--group", group)
        version = run("topics", "--version").strip()
    rows = [line.split() for line in offsets.splitlines() if line.split()[:2] == [group, topic]]
    report = {
        "client": "Java console tools",
        "version": version,
        "codecs": CODECS,
        "partitions": described.count("\tPartition: "),
        "produced": sum(int(row[4]) for row in rows),
        "consumed": len(consumed),
        "committed": sum(int(row[3]) for row in rows),
        "sha256": hashlib.sha256("\n".join(sorted(consumed)).encode()).hexdigest(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
