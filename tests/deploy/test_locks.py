"""What is installed where the sidecar runs is what it is tested with."""

from __future__ import annotations

import re
from pathlib import Path

LOCKS = Path(__file__).parents[2] / "deploy" / "locks"


def versions(name: str) -> dict[str, str]:
    """Return the version of each package in a lock."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (LOCKS / name).read_text(), re.MULTILINE))


def test_the_image_gets_the_versions_that_the_tests_have() -> None:
    runtime, tested = versions("runtime.txt"), versions("dev.txt")
    assert {"uvloop", "confluent-kafka", "pydantic"} <= runtime.keys()
    assert {name: tested.get(name) for name in runtime} == runtime
