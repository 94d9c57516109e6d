"""Compiled modules: what runs for each request.

``exchange`` is a twin of the module of ``proxy.core``. ``walk`` reads bodies of Produce, Fetch and ShareFetch;
``walk_door`` lets Python do that, for tests and measurements. ``session`` is the protocol state of one client
connection; ``header`` and ``wire`` are what it reads bytes with. Pure Python that does the same is in ``tests/oracle``.
"""
