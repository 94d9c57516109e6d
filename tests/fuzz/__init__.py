"""Hostile bytes by the million, for everything that reads bytes of a peer: ``make fuzz``, or ``python -m tests.fuzz``.

targets.py    what is fuzzed and what has to hold; sessions.py has those that need a session, observed.py those of
              observers, responses.py those of what the sidecar answers and edits, consumers.py those of groups.
seeds.py      valid inputs, from real clients and from the message definitions; corpus/ holds those that once failed.
mutate.py     inputs from seeds.
run.py        blocks of inputs, one after the other; __main__.py: blocks in parallel, with figures.

Inputs follow from (seed, target, number of the block) alone, so a run can be repeated whatever it was split into.
``test_fuzz.py`` replays what once failed, runs a few blocks, and tries every api key there can be.
"""
