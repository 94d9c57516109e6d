"""Kafka's wire protocol, sans IO. What reads every frame and body is compiled: ``proxy.compiled``.

Rule of this folder: no asyncio, socket, time, os or logging. Time comes in as an argument, bytes come in as
arguments, facts go out as values. ``pyproject.toml`` holds the contract that checks it.
"""
