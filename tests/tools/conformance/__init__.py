"""The same schedules of connects against a real broker and against the sidecar, and what became of them compared."""
