import msgspec
import pytest

from proxy.local.jars import SETS, cache_dir
from proxy.protocol.private import PRIVATE, PrivateApi
from proxy.protocol.versions import TABLE, Addition
from tests.tools.generate_protocol import SET, Release, additions, extended, read_releases

Apis = dict[int, tuple[str, range, range]]


def release(name: str, *, served: set[int] | None = None, **spans: tuple[int, int, int] | tuple[int, int]) -> Release:
    """``k3=(1, 4)``: key 3 has versions 1 to 4; a third number: those up to it are deprecated."""
    apis: Apis = {
        int(key[1:]): (f"Api{key[1:]}", range(span[0], span[1] + 1), range(span[2] + 1) if len(span) > 2 else range(0))
        for key, span in spans.items()
    }
    return Release(name, apis, set(apis) if served is None else served)


def columns(rows: list[Addition]) -> list[tuple[int, int, int, str]]:
    return [(row.n, row.api_key, row.version, row.release) for row in rows]


ONE = release("1.0", k3=(0, 1), k0=(0, 0))
TWO = release("2.0", k0=(0, 1), k3=(0, 2, 0))
THREE = release("3.0", k0=(0, 1), k3=(1, 2), k9=(0, 0))


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> dict[int, PrivateApi]:
    for key in list(PRIVATE):
        monkeypatch.delitem(PRIVATE, key)
    monkeypatch.setitem(PRIVATE, 30000, PrivateApi("Ours", 0, 0))
    return PRIVATE


@pytest.mark.promise("protocol.md", "A new release of Kafka adds ProtocolVersions at the end, and all numbers stay.")
@pytest.mark.usefixtures("private")
def test_a_table_grows_at_its_end_and_numbers_stay() -> None:
    before = extended([], additions([ONE, TWO]))
    assert columns(before)[5:] == [(6, 30000, 0, before[5].release)]
    assert before[5].private
    after = extended(before, additions([ONE, TWO, THREE]))
    assert columns(after) == [*columns(before), (7, 9, 0, "3.0")]
    assert [row for row in after if row.removed] == [msgspec.structs.replace(before[1], removed=7)]
    assert extended(after, additions([ONE, TWO, THREE])) == after


@pytest.mark.kafka
def test_the_committed_table_is_what_the_generator_makes_of_the_jars() -> None:
    if not all((cache_dir() / "jars" / pin.file_name).exists() for pin in SETS[SET]):
        pytest.skip(f"the jar cache lacks releases: python -m proxy.local.jars fetch {SET}")
    assert extended([], additions(read_releases())) == list(TABLE)
