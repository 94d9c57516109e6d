"""A real broker, as the tests of the sidecar itself have, and what the chart makes."""

from tests.deploy.manifests import helm, kafka_chart, patched, render
from tests.integration.conftest import topic

__all__ = ["helm", "kafka_chart", "patched", "render", "topic"]
