"""What others read of the tables, without a JVM.

costs.py       reads ``cost``, in an order of its own; for the next two.
focus.py       ``cost`` as a CSV file of FOCUS.
opencost.py    ``cost`` as OpenCost takes custom costs.
prometheus.py  objectives as rules for Prometheus.
"""
