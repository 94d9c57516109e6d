"""A real broker, as the tests of the sidecar itself have."""

from tests.integration.conftest import cluster, topic

__all__ = ["cluster", "topic"]
