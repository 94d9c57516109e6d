"""The lock of jars, and what is said where one cannot be fetched."""

from __future__ import annotations

import pytest

from proxy.errors import LocalError
from proxy.local.download import explain
from proxy.local.jars import LOCK_FILE, SETS
from proxy.local.pins import Pin, parse, render

A = Pin("org.example", "thing_2.13", "1.0-rc.1", "a" * 64, 10)
B = Pin("com.example", "other", "2", "b" * 64, 20)


@pytest.mark.promise("dependencies.md", "The jars of Kafka and Spark are locked with versions, checksums and sizes.")
def test_the_committed_lock_is_what_the_lock_command_writes() -> None:
    sets = {"one-1.0": (B, A), "two": (A,)}
    assert parse(render(sets)) == sets
    assert render(SETS) == LOCK_FILE.read_text()
    sizes = {name: len(pins) for name, pins in SETS.items()}
    kafka = {"kafka-4.3.1": 53, "kafka-3.9.2": 63, "kafka-4.4.0": 44, "kafka-clients-2.8.2": 5, "kafka-protocol": 32}
    assert sizes == {**kafka, "spark-4.2.0": 4, "delta-4.4.0": 5, "hadoop-aws-3.5.0": 37, "spark-avro": 1}


def test_a_wrong_line_of_a_lock_is_named() -> None:
    form = "not `group:artifact:version sha256 bytes`"
    for line, why in (
        ("org.example:thing:1.0 abc 10", form),
        (f"org.example:thing {'a' * 64} 10", form),
        (f"org.example:thing:1.0 {'a' * 64} 0", form),
        (f"org.example:../thing:1.0 {'a' * 64} 9", form),
        (f"org.other:thing_2.13:1.0-rc.1 {'a' * 64} 10", "1.0-rc.1.jar is already there as another jar"),
    ):
        with pytest.raises(LocalError, match="line 5") as raised:
            parse(render({"one": (A,)}) + line)
        assert why in str(raised.value)
    with pytest.raises(LocalError, match="line 1"):
        parse(f"org.example:thing:1.0 {'a' * 64} 10")


@pytest.mark.promise("install.md", "Where jars cannot be downloaded, one sentence says why.")
def test_what_a_client_says_becomes_a_sentence() -> None:
    missing = [Pin("org.example", f"jar{n}", "1.0", "0" * 64, 2_000_000) for n in range(5)]
    others = "org.example:jar0:1.0, org.example:jar1:1.0, org.example:jar2:1.0 and others"
    proxied = "You probably access the destination server through a proxy server that is not well configured."
    for said, reported in (
        ("SSLHandshakeException: PKIX path building failed: …: unable to find valid", "does not trust the TLS cert"),
        ("Server access error at url … (java.net.ConnectException: Connection refused)", "cannot be reached"),
        (proxied, "cannot be reached"),
        ("java.net.UnknownHostException: x: Temporary failure in name resolution", "cannot be reached"),
        ("java.io.IOException: No space left on device", "the disk is full; 11 MB"),
        ("SERVER ERROR: Bad Gateway url=…", "failed while org.example:jar0:1.0 was fetched"),
        (":: org.example#jar0;1.0: not found", f"does not serve {others}"),
    ):
        sentence = explain(said, missing)
        assert reported in sentence, said
        assert "\n" not in sentence
