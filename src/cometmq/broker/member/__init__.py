"""A member of a set: the process around the state machine of :mod:`cometmq.broker.failover`.

Theory of operation
===================

A member is one process with one state machine, one engine and, at each moment, at most one *life*: a broker that is
open as a slave or as a master. A change of the role stops the life and starts the other one on the same ports and the
same store, as a restart does. So tables, timers, POP and transactions begin as after a restart. A slave whose master
changes keeps its life.

* A slave's life lasts while the machine is STARTING, FOLLOWER, FROZEN, STANDING or HALTED. It answers requests of
  clients once the set has confirmed something, so that nobody reads what may vanish.
* A master's life begins with TakeOffice: it opens the store, appends and flushes the epoch's marker, and listens for
  the other members. It listens for clients once everything that it had when it was elected is confirmed. It ends
  quickly with StepDown: sends that wait are answered with an error.

Everything runs on the event loop. The machine's events are handled one after the other (``driver.py``); what it asks
for is done at once where no order may be lost (freezing, fencing), and by one task, in order, where a life must be
stopped and started (``set_member.py``).
"""
