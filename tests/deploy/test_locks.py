"""What is installed where the sidecar runs is what it is tested with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LOCKS = Path(__file__).parents[2] / "deploy" / "locks"


def versions(name: str) -> dict[str, str]:
    """Return the version of each package in a lock; of several by Python's version, the one for the newest."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (LOCKS / name).read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("lock", "some"),
    [("runtime.txt", {"uvloop", "confluent-kafka", "pydantic"}), ("jobs.txt", {"pyspark", "deltalake", "msgspec"})],
)
def test_the_images_get_the_versions_that_the_tests_have(lock: str, some: set[str]) -> None:
    shipped, tested = versions(lock), versions("dev.txt")
    assert some <= shipped.keys()
    assert {name: tested.get(name) for name in shipped} == shipped
