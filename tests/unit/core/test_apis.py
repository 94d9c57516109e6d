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
def test_the_committed_tables_are_what_their_generators_make_of_the_jars(
    module: ModuleType, generate: Callable[[list[Path]], str]
) -> None:
    found = [path for name in JARS for path in sorted((cache_dir() / "jars").glob(name))]
    if len(found) < len(JARS):
        pytest.skip(f"the jar cache {cache_dir()} lacks {' or '.join(JARS)}: python -m proxy.local.jars fetch")
    assert Path(module.__file__ or "").read_text() == generate(found)


def test_what_is_known_and_what_headers_it_has() -> None:
    assert sorted(apis.APIS) == list(range(95))
    assert [apis.api_name(key) for key in (0, 10_000, -1)] == ["Produce", "ApiKey(10000)", "ApiKey(-1)"]
    assert [apis.is_known(0, version) for version in (-1, 0, 13, 14)] == [False, True, True, False]
    assert not apis.is_known(95, 0)
    flexible = [(0, 8), (0, 9), (0, 99), (17, 1), (4711, 3), (18, 3)]
    assert [apis.request_is_flexible(*one) for one in flexible] == [False, True, True, False, False, True]
    assert [apis.response_header_is_flexible(*one) for one in ((1, 11), (1, 12), (18, 4))] == [False, True, False]
