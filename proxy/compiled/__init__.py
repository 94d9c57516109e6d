"""What reads bodies, in Cython alone: Python would be twice as slow.

``exchange`` is one request with its response, as observers get it. ``walk`` reads bodies of Produce, Fetch and
ShareFetch; ``walk_door`` lets Python do that, for tests and measurements. ``wire`` is what they read bytes with. Parts
of a module are in .pxi files, each named in their first line. ``build`` compiles all modules of the project.
Tests compare the walkers with struct views (``proxy/core/struct.py``), and ``items.pxi`` with ``tests/oracle``.
"""
