"""Compiled twins of the hot parts, optional at install: same behaviour and same tests as the pure ones.

``exchange`` and ``walk`` are twins of the modules of ``proxy.core``, ``session`` of its session, ``relay`` of
``proxy.net.relay``. The pure versions say what is meant; ``proxy.net.datapath`` chooses which run.
"""
