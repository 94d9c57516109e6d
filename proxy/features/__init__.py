"""Versions of features that the sidecars and jobs of a fleet must agree on (KIP-584). Pure, without IO and clock.

Glossary
--------
feature     something that several programs must agree on, for example the schema of the audit's events.
level       a version of a feature: an integer from 1.
supported   the levels that one program can work with.
finalized   the levels that the whole fleet has agreed on. A writer uses none above the finalized maximum.
epoch       the number of changes of the finalized levels so far.
participant a sidecar, or a reader: a job that reads what sidecars write.
controller  the sidecar that alone changes finalized levels.

catalog.py    the features of this release, and their supported levels.
records.py    the records of the topic with the finalized levels, and the reader's record of the registry.
topic_state.py  what that topic says, as far as it was read.
participants.py  who has to agree: the sidecars and readers of the registry.
levels.py     which level of each feature one program uses, and whether it supports the finalized ones.
updates.py    an update: what a client asks for, and whether it is allowed.
controller_states.py  the states of the feature controller, and what an executor is to do for it.
level_change.py  a change of levels that is under way.
transaction_queue.py  the records that the controller writes, until it has read them back.
controller.py the feature controller: the one sidecar that changes finalized levels.
view.py       what one process knows of the finalized levels.
status.py     what one sidecar knows of features, for people.
"""
