"""Compiled modules: what runs for each request.

``exchange`` is one request with its response, as observers are told of it. ``walk`` reads bodies of Produce, Fetch and
ShareFetch; ``walk_door`` lets Python do that, for tests and measurements. ``session`` is the protocol state of one
client connection; ``header`` and ``wire`` are what it reads bytes with. Parts of a module are in .pxi files, each named
in their first line. Pure Python that does the same, for tests to compare with, is in ``tests/oracle``.
"""
