"""The committed api table is what its generator makes of the jars, where the jar cache has them."""

from pathlib import Path

import pytest

from proxy.core import apis
from proxy.local.jars import cache_dir
from tests.tools.generate_apis import generate

JARS = ["kafka-clients-4.4.0.jar", "kafka-clients-3.9.2.jar"]


def test_the_table_is_what_the_generator_makes_of_the_jars() -> None:
    found = [path for name in JARS for path in sorted((cache_dir() / "jars").glob(name))]
    if len(found) < len(JARS):
        pytest.skip(f"the jar cache {cache_dir()} lacks {' or '.join(JARS)}: python -m proxy.local.jars fetch")
    assert Path(apis.__file__).read_text() == generate(found)
