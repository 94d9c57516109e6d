"""Compiled modules: what runs for each request.

``exchange`` and ``walk`` are twins of the modules of ``proxy.core``. ``session`` is the protocol state of one client
connection; ``header`` and ``wire`` are what it reads bytes with. Pure Python that does the same is in ``tests/oracle``.
"""
