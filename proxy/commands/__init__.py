"""The commands, by what they need: the sidecar itself, a cluster on this machine, the tables.

Each file has functions that act, and ``add``, which puts them on the command line. What a function needs it imports
when it runs.
"""
