"""The exceptions of this package. Their texts are shown to the user."""

from __future__ import annotations


class JobError(Exception):
    """Base of every error that this package raises on purpose; its text is one sentence."""


class QueryError(JobError):
    """A query cannot be answered: its SQL is wrong, or a table is missing or unreadable."""
