from pathlib import Path

import pytest

from proxy.local.archive import archive_of, archive_options, archive_or_draft_options, publish_or_discard

HOME = Path("/somewhere/node-1")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("BROKERSIDE_CACHE", str(tmp_path / "cache"))
    return archive_of(java, [Path("/jars/a.jar"), Path("/jars/b.jar")])


def draft_of(options: list[str]) -> Path:
    option, _, path = options[0].partition("=")
    assert option == "-XX:ArchiveClassesAtExit"
    return Path(path)


def test_a_draft_becomes_the_archive(archive: Path) -> None:
    assert archive_options(archive) == []
    draft = draft_of(archive_or_draft_options(archive, HOME))
    draft.write_bytes(b"classes")
    assert archive_options(archive) == []
    publish_or_discard(HOME, complete=True)
    assert archive.read_bytes() == b"classes"
    assert not draft.exists()
    assert archive_or_draft_options(archive, HOME) == archive_options(archive)
    assert archive_options(archive)[0] == f"-XX:SharedArchiveFile={archive}"


def test_the_draft_of_a_killed_node_is_thrown_away(archive: Path) -> None:
    draft = draft_of(archive_or_draft_options(archive, HOME))
    draft.write_bytes(b"half")
    publish_or_discard(HOME, complete=False)
    assert not draft.exists()
    assert archive_options(archive) == []


def test_each_node_settles_its_own(archive: Path) -> None:
    other = draft_of(archive_or_draft_options(archive, Path("/somewhere/node-2")))
    other.write_bytes(b"being written")
    publish_or_discard(HOME, complete=True)
    assert other.exists()
    assert not archive.exists()


def test_a_cache_that_cannot_be_written_to_is_no_error(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert archive_or_draft_options(archive, HOME) == []
    publish_or_discard(HOME, complete=True)
