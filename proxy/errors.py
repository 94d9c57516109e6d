"""The errors of the project, by who caused them: this process (LocalError) or one of its peers (PeerError).

``reason`` is a short constant that is used as metric label and log field, so the set of reasons is closed.
"""

from __future__ import annotations

import os
import re
from typing import Literal

Side = Literal["client", "broker"]


_FAILED_CONNECT = re.compile(r"\[Errno (\d+)\] Connect call failed")


def describe_os_error(error: BaseException) -> str:
    """Return the reason of an error of the system or the network; empty if it has none, as a timeout.

    What Python puts around it is left out: ``Connection refused`` for ``[Errno 111] Connect call failed ('::1', 1)``.
    """
    failed = dict.fromkeys(int(number) for number in _FAILED_CONNECT.findall(str(error)))
    if failed:
        return ", ".join(map(os.strerror, failed))
    return getattr(error, "strerror", None) or str(error)


class BrokersideError(Exception):
    """Base of all errors that the project raises on purpose. Its text is one sentence for a person."""


class LocalError(BrokersideError):
    """Something is wrong on this side, such as configuration, environment or resources. The user can fix it."""


class ConfigError(LocalError):
    """One or more mistakes in a configuration. ``problems``: one line each with path, value and what is allowed."""

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        super().__init__(f"{source}: {len(problems)} problem(s)\n" + "\n".join(f"  {p}" for p in problems))


class PeerError(BrokersideError):
    """A peer sent bytes that Kafka's protocol does not allow. The connection ends with ``reason`` as its cause."""

    def __init__(self, side: Side, reason: str, detail: str = "") -> None:
        self.side = side
        self.reason = reason
        self.detail = detail
        super().__init__(f"{side}: {reason}{': ' + detail if detail else ''}")


class MalformedBody(PeerError):
    """A body that does not match its message definition. It is forwarded all the same, and only counted."""

    def __init__(self, side: Side, detail: str) -> None:
        super().__init__(side, "malformed", detail)
