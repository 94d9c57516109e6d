"""Limits on connections: Kafka's, as KIP-612, KIP-402 and KIP-306 tell them. Pure: no IO, and time is passed in.

model.py      limits, throttles and the present state as plain values.
window.py     Kafka's sampled Rate, and the time to wait for it.
sensors.py    the rates that are measured, broker-wide, by listener and by address.
gate.py       who may enter and when: a state machine that is told of arrivals, ends and time.
throttles.py  what was throttled, counted and gathered for the log and the audit.
state.py      what a gate does now, for people and for metrics.
"""
