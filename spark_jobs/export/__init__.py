"""Exports the tables to the formats of other systems, without a JVM.

costs.py       reads ``cost`` in a stable order, for FOCUS and OpenCost.
focus.py       ``cost`` as a CSV file of FOCUS.
opencost.py    ``cost`` as custom costs of OpenCost.
ocsf.py        ``changes`` as events of OCSF.
prometheus.py  objectives as recording and alerting rules of Prometheus.
"""
