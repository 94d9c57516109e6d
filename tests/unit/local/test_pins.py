import pytest

from proxy.errors import LocalError
from proxy.local.jars import LOCK_FILE, SETS
from proxy.local.pins import Pin, parse, render

A = Pin("org.example", "thing_2.13", "1.0-rc.1", "a" * 64, 10)
B = Pin("com.example", "other", "2", "b" * 64, 20)


def test_what_is_rendered_is_parsed() -> None:
    sets = {"one-1.0": (B, A), "two": (A,)}
    assert parse(render(sets)) == sets


def test_the_committed_lock_is_what_the_lock_command_writes() -> None:
    assert render(SETS) == LOCK_FILE.read_text()
    sizes = {name: len(pins) for name, pins in SETS.items()}
    kafka = {"kafka-4.3.1": 53, "kafka-3.9.2": 63, "kafka-4.4.0": 44, "kafka-clients-2.8.2": 5, "kafka-protocol": 32}
    assert sizes == {**kafka, "spark-4.2.0": 4, "delta-4.4.0": 5, "hadoop-aws-3.5.0": 37, "spark-avro": 1}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("org.example:thing:1.0 abc 10", "not `group:artifact:version sha256 bytes`"),
        (f"org.example:thing {'a' * 64} 10", "not `group:artifact:version sha256 bytes`"),
        (f"org.example:thing:1.0 {'a' * 64} 0", "not `group:artifact:version sha256 bytes`"),
        (f"org.example:../thing:1.0 {'a' * 64} 9", "not `group:artifact:version sha256 bytes`"),
        (f"org.other:thing_2.13:1.0-rc.1 {'a' * 64} 10", "thing_2.13-1.0-rc.1.jar is already there as another jar"),
    ],
)
def test_a_wrong_line_is_named(line: str, why: str) -> None:
    with pytest.raises(LocalError, match="line 5") as raised:
        parse(render({"one": (A,)}) + line)
    assert why in str(raised.value)


def test_a_jar_outside_of_a_set_is_refused() -> None:
    with pytest.raises(LocalError, match="line 1"):
        parse(f"org.example:thing:1.0 {'a' * 64} 10")
