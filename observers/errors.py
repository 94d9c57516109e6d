"""The one error of this package that is meant for a person."""

from __future__ import annotations


class ObserverError(ValueError):
    """An observer cannot be started: it is missing, has the wrong shape, or refused its configuration."""
