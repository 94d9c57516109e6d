"""Limits on connections as in Kafka (KIP-612, KIP-402, KIP-306). Pure: no IO, and the time is an argument.

model.py              Limits, throttles and the current state as plain values.
sampled_rate.py       Kafka's sampled rate, and the throttle time that follows from it.
rate_sensors.py       The measured rates: broker-wide, per listener, and per address or principal.
connection_quotas.py  Which connections are admitted, and when: a state machine of arrivals, ends and time.
principal_quotas.py   Limits of those who have logged in: the same for connections that are already open.
admission_pace.py     How fast a listener with a rate limit admits what its window lets in at once.
java_addresses.py     Names of clients as a broker reads them.
inheritance.py        What a successor of this process needs to continue with the same rates and counts.
throttle_reports.py   Throttled connections, aggregated for the log and the audit.
quotas_state.py       The current state of the quotas, for people and for metrics.
"""
