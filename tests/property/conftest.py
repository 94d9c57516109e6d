"""Two depths of search: ``fast`` (default, the same examples each run) and ``deep`` (HYPOTHESIS_PROFILE=deep)."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("fast", max_examples=20, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "deep", max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
