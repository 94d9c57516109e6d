"""The one error of this package that is meant for a person."""

from __future__ import annotations


class ObserverError(ValueError):
    """An observer cannot be started: it is missing, does not fit the observer interface, or refused its configuration."""
