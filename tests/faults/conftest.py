"""A site for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.site import Site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Nothing of it runs before the test has given it its limits."""
    site = Site(tmp_path)
    yield site
    await site.stop()
