"""Compiled modules: what runs for each request.

``exchange`` and ``walk`` are twins of the modules of ``proxy.core``, ``session`` of its session.
"""
