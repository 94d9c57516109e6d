"""Who is to blame: this process (LocalError) or one of its peers (PeerError).

``reason`` is a short constant that serves as metric label and log field, so the set of reasons stays closed.
"""

from __future__ import annotations

from typing import Literal

Side = Literal["client", "broker"]


class BrokersideError(Exception):
    """Base of every error this package raises on purpose; its text is one clear sentence for a person."""


class LocalError(BrokersideError):
    """Something on our side is wrong: configuration, environment, a resource; the user can mend it."""


class ConfigError(LocalError):
    """One or more mistakes in a configuration; ``problems`` holds one line each: path, value, what is allowed."""

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        super().__init__(f"{source}: {len(problems)} problem(s)\n" + "\n".join(f"  {p}" for p in problems))


class PeerError(BrokersideError):
    """A peer sent bytes that Kafka's protocol does not allow; the connection ends with ``reason`` as its cause."""

    def __init__(self, side: Side, reason: str, detail: str = "") -> None:
        self.side = side
        self.reason = reason
        self.detail = detail
        super().__init__(f"{side}: {reason}{': ' + detail if detail else ''}")


class MalformedBody(PeerError):
    """A body that does not follow its message definition; it is forwarded all the same, and only counted."""

    def __init__(self, side: Side, detail: str) -> None:
        super().__init__(side, "malformed", detail)
