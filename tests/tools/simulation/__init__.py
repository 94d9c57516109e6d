"""Whole fleets with their consumers, simulated: thousands of schedules of faults, each made by one number, its seed.

No IO, one thread, virtual milliseconds. What is real is what has to be right: ``proxy.coordinator`` (the machine),
``proxy.fleet.election`` and ``proxy.client.consumer.membership``, and the bytes between them. What is simulated is all
that they stand on:

timeline.py     virtual time; processes: their clocks (rates that differ by up to 2 %), SIGSTOP, SIGKILL, power off.
network.py      TCP connections: latency, loss in one direction or both, TCP_USER_TIMEOUT, FIN and resets, full buffers.
kafka.py        topics with numbered messages; the logs of ``__brokerside_groups`` with transactions, producer epochs
                and commits that are acknowledged before they can be read; offsets of groups.
writer.py       the fenced producer of a partition: commits of unknown outcome, late confirmations, aborts.
sidecar.py      a sidecar: carries the machine's effects out; the fleet's registry, as each has read it.
consumer.py     a consumer: a fetcher, an application that takes messages.
faults.py       what goes wrong.
world.py        one schedule.
invariants.py   what has to hold.
run.py          runs schedules, and repeats them.

Each schedule has some faults; then none is left, and all has to become well again. Invariants:

I1   In each committed generation a partition has one owner.
I2   Generations of a group grow, also from one coordinator to the next, and claims of a partition do.
I3   Nobody is sent a StartFetcher of what is not committed, and a coordinator sends nothing once its claim was not
     confirmed for ``state.write.timeout.ms``.
I4   Two consumers never can hand out messages of one partition at the same time. Checked whenever a consumer gets the
     right to, and whenever a stopped one goes on.
I5   After the last fault every consumer is registered, every partition of every topic that a group subscribes to is
     handed out by exactly one of its consumers, within a time that follows from the timeouts, and this stays so.
I6   Committed offsets do not go back while one owner has the partition, and are never past what was handed out. No
     message is skipped.
I7   The three purgatories hold the requests that are open, and nothing else; at most two pings are open.
I8   A frozen group (``rebalance.enabled: false``) gets no StopFetcher, but for an attempt that had begun.
I9   No offset is given to Kafka for a group that has had members of Kafka's own protocols for 11 s, and none of one
     where they were found. A coordinator that was stopped, or cut off from Kafka, has 2 s more from the end of that,
     since Kafka's answers take milliseconds here.
I10  The same events at the same times give the same effects.

``python -m tests.tools.simulation.run FIRST COUNT`` runs many, and prints the seeds that fail; with one seed alone it
prints the trace of that schedule. The same seed gives the same trace everywhere.
"""
