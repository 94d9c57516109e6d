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


@pytest.mark.promise("local-cluster.md", "A broker that was killed leaves no half-written archive of classes behind.")
def test_the_draft_of_a_node_that_was_stopped_becomes_the_archive(archive: Path, tmp_path: Path) -> None:
    other = draft_of(archive_or_draft_options(archive, Path("/somewhere/node-2")))
    other.write_bytes(b"being written")
    draft = draft_of(archive_or_draft_options(archive, HOME))
    draft.write_bytes(b"half")
    publish_or_discard(HOME, complete=False)  # it was killed
    assert (draft.exists(), archive_options(archive)) == (False, [])
    draft = draft_of(archive_or_draft_options(archive, HOME))
    draft.write_bytes(b"classes")
    assert archive_options(archive) == []
    publish_or_discard(HOME, complete=True)
    assert archive.read_bytes() == b"classes"
    assert not draft.exists()
    assert other.exists(), "each node settles its own"
    assert archive_or_draft_options(archive, HOME) == archive_options(archive)
    assert archive_options(archive)[0] == f"-XX:SharedArchiveFile={archive}"


def test_a_cache_that_cannot_be_written_to_is_no_error(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert archive_or_draft_options(archive, HOME) == []
    publish_or_discard(HOME, complete=True)
