"""Pages of a sidecar's admin address."""

from __future__ import annotations

import contextlib
import urllib.request


def get(url: str, timeout: float = 60, data: bytes | None = None) -> tuple[int, str]:
    """Status and body of a page. A request of this process that was late, as after a pause, is made again: the sidecar
    gives it two seconds. Raises HTTPError."""
    for _ in range(5):
        with contextlib.suppress(ConnectionResetError), urllib.request.urlopen(url, data, timeout) as response:
            return response.status, response.read().decode()
    raise ConnectionResetError(url)
