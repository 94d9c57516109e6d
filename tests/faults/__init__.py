"""Abuse of connections, exhaustion, clock steps and bad reloads, each against a whole sidecar process."""
