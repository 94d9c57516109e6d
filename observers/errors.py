"""The error of this package whose text a person reads."""

from __future__ import annotations


class ObserverError(ValueError):
    """An observer cannot be started.

    It is missing, does not fit the observer interface or refused its configuration.
    """
