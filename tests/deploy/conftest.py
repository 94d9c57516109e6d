"""A real broker, as the tests of the sidecar itself have, and what the chart makes."""

from tests.deploy.manifests import helm, kafka_chart, patched, render
from tests.integration.conftest import cluster, topic

__all__ = ["cluster", "helm", "kafka_chart", "patched", "render", "topic"]
