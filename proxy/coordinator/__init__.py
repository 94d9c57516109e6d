"""The coordinator of consumer groups (seed 001, the 0.9 draft): it assigns partitions and pushes them to the consumers.

Pure, without IO and clock: events in, effects out, time passed in. It stands in the main process of a sidecar.

Glossary
--------
group       consumers that share the partitions of the topics they subscribe to.
member      one consumer of a group, by its id; its partitions may be held back after it is gone.
thread      one stream of a member. Partitions are assigned to threads.
owner       the thread that a committed generation assigns a partition to.
generation  a committed assignment of all partitions of a group, counted from 1.
lease       the time for which a consumer may fetch after it has last heard from its coordinator.
claim       how often a partition of the groups' topic has been taken over; the higher claim is the later one.
attempt     one try to rebalance a group: stop, commit, start.
resume      an attempt that changes no owner: members get what they own, and nobody stops.
free        a partition is free when nobody who is not a member may be fetching it.
purgatory   the requests to consumers that wait for a response, by correlation id.

events.py          what the coordinator hears.
effects.py         what it asks for.
machine.py         the coordinator: what each event means, and what is due.
membership.py      how consumers become members, and how they go.
rebalance.py       stop, commit, start.
states.py          the states of partitions, groups and members, as data.
lease.py           who may fetch, and until when; both sides.
held_partition.py  a partition of the groups' topic: its claim, and whether it may speak.
group.py           a group: members, owners, the attempt under way.
member.py          a member: what it may be fetching, and what it has not answered.
offsets.py         consumed and committed offsets of a group.
attempt_preparation.py  prepares an attempt, a part at a time.
assignment_plan.py who is to own what, from members, topics and owners.
assignment.py      the assignors.
subscription.py    which topics a consumer subscribes to.
topics.py          topic to groups, and what a change of topics concerns.
requests.py        what is sent to members, and the watchers of it.
pings.py           when each member is pinged.
purgatory.py       requests that wait for a response.
handlers.py        which group's attempt is made when.
committer.py       offsets are committed by interval.
questions.py       what is asked of Kafka about a group.
registration.py    what is checked of RegisterConsumer.
admission.py       what of it depends on the group.
codes.py           its error codes.
writes.py          writes that are under way.
wire.py            the messages as bytes.
records.py         the records of the groups' topic as bytes.
settings.py        the configuration, as the machine uses it.
coordinator_state.py  what the parts work on together.
status.py          what is known of a coordinator; description.py: how it is found out.
view.py            what a process that serves clients knows of the coordinators of the fleet.
effect_sink.py     gathers effects.
timers.py          what is due when, by key.
steps.py           work that is done a part at a time.

The eight fields of the seed's coordinator (section 4): (1) the elector is ``proxy.fleet.election``, its outcome
``HeldPartition``; (2) the registry of groups is ``Group`` and ``GroupOffsets``; (3) topic to groups and (4) the
wildcard groups are ``TopicIndex``; (5) the handlers are ``Handlers``; (6) the scheduler is ``PingSchedule``; (7) the
committer is ``Committer``; (8) the three purgatories are in ``ConsumerRequests``.
"""
