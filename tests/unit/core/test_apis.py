"""The table of apis, the definitions of messages, and what follows from them for headers."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from proxy.core import apis, schema_table
from proxy.local.jars import cache_dir
from tests.cases import each
from tests.tools import generate_apis, generate_schema

JARS = ["kafka-clients-4.4.0.jar", "kafka-clients-3.9.2.jar"]


@pytest.mark.promise(
    "supported-versions.md",
    "The sidecar knows every api and version of Kafka 0.8.2 to 4.4.0 by Kafka's own message definitions.",
)
@each(("module", "generate"), [(apis, generate_apis.generate), (schema_table, generate_schema.generate)])
def test_the_committed_tables(module: ModuleType, generate: Callable[[list[Path]], str]) -> None:
    found = [path for name in JARS for path in sorted((cache_dir() / "jars").glob(name))]
    if len(found) < len(JARS):
        pytest.skip(f"the jar cache {cache_dir()} lacks {' or '.join(JARS)}: python -m proxy.local.jars fetch")
    assert Path(module.__file__ or "").read_text() == generate(found)
