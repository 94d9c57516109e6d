"""The configurations in README.md and docs, as their readers would use them.

A block is taken as it stands. What a test changes is where things are, never what is configured:

* hosts become 127.0.0.1, and each port a free one: the same for the same port of a page;
* paths lead below the test's folder, and files of secrets are there;
* users, passwords and the names in certificates are those of the test's broker.

A fragment is completed by the configuration that the README has: its keys that the fragment does not have. An indented
block has keys of a listener, and completes the README's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tools.authority import Authority

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def properties(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.text.splitlines())


def blocks(*kinds: str, page: str = "") -> Iterator[Block]:
    pages = [ROOT / page] if page else [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for path in pages:
        text = path.read_text()
        for found in _BLOCK.finditer(text):
            if found["kind"] in kinds:
                # Of the page's own indentation, which a list item has, nothing is left; what is deeper is the block's.
                lines = [line.removeprefix(found["indent"]) for line in found["text"].splitlines()]
                yield Block(path, text[: found.start()].count("\n") + 1, found["kind"], "\n".join(lines) + "\n")


def example() -> str:
    """The example observer, as docs/observers.md has it."""
    return next(blocks("python", page="docs/observers.md")).text


def write_example_files(folder: Path, password: str, keys: str) -> None:
    """The files that the complete example of docs/config.md names. ``password``: of librdkafka; ``keys``: of HMAC."""
    (folder / "secrets").mkdir()
    (folder / "secrets" / "internal-password").write_text(password)
    (folder / "secrets" / "registry-keys").write_text(keys)
    (folder / "secrets" / "audit-keys").write_text(keys)
    authority = Authority(folder / "tls")
    Authority(folder / "tls", "clients-ca")
    for name in ("kafka-1", "sidecar"):
        authority.issue(name, f"CN={name}", password="of-the-key")
        (folder / "tls" / f"{name}.password").write_text("of-the-key\n")
