"""Commands of ``brokerside`` in this process, and what they print."""

import io
import sys
from dataclasses import dataclass

import pytest

from proxy.cli import main


@dataclass
class Done:
    """``err``: what a person sees beside ``out``; ``raw``: the bytes of ``out``."""

    code: int
    out: str
    err: str
    raw: bytes


class Terminal:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch

    def __call__(self, *arguments: str) -> Done:
        raw, err = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        with self.patch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setattr(sys, "argv", ["brokerside", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        printed = raw.getvalue()
        return Done(ended.value.code or 0, printed.decode(errors="replace"), err.getvalue(), printed)  # type: ignore[arg-type]


@pytest.fixture
def brokerside(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(monkeypatch)
