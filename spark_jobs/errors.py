"""What a job or a query refuses, or fails with, in words for a person."""

from __future__ import annotations


class JobError(Exception):
    """Base of every error this package raises on purpose; its text is one clear sentence."""


class QueryError(JobError):
    """A query that cannot be answered: its SQL, or the tables it asks for."""
