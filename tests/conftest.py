"""Hypothesis draws the same examples in every run: a failure on one machine is one on all."""

from hypothesis import HealthCheck, settings

# Deadlines and the too_slow check read the wall clock, so a loaded machine could fail them.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")
