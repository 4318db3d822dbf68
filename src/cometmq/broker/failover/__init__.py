"""Failover: a set of brokers elects its master, and loses nothing that was acknowledged.

Theory of operation
===================

A *set* is the brokers with one ``brokerName``. An *engine* (etcd, or Kubernetes) keeps one *document* of the set: the
*epoch*, its master, and the *in-sync set*. The document changes by compare-and-swap only. An engine is needed to change
the document, and not to send or receive messages.

A *member* is a replica during one *generation*. The generation rises when the replica may have lost bytes.

**What may fail.** Processes are killed or paused for any time, machines lose power with all bytes that were not
flushed, disks are full, slow or replaced, the network loses, delays and cuts (also in one direction), requests to the
engine land late, answers are lost, and clocks run at different speeds and jump. Members do not lie.

**Safety rests on no clock and on no lease.** It rests on seven rules:

1. A message is acknowledged only when every *counted* member has it: the confirmed in-sync set, the set of a change
   that is not yet decided, and members that are joining. The smallest end of their logs is the *confirmed end*.
2. Only a member of the confirmed in-sync set stands for election, and it freezes first: it appends nothing and reports
   nothing for this or older epochs, until the document's version has moved.
3. An election demands in the same transaction that the old master's presence is gone. A candidate that has seen that
   the master's process is dead removes the presence in the transaction, unless it has changed since.
4. Consumers, pops, timers and checks read no further than the confirmed end.
5. An epoch stands in the log as a marker record, in each registration, in replication's sign-in and in each report. A
   master that sees a higher epoch stops acknowledging until it has read the document. Reports of another epoch do not
   count.
6. A start reads the document before it serves. A process never resumes an epoch in which an earlier process has served:
   the log has that epoch's marker. A marker is flushed before anything of its epoch leaves the master.
7. A swap without an answer is repeated with the same version until the version has moved. Reading the old version
   proves nothing: the swap may still land. Until then, both sets count.

Why nothing is lost: every member of each set that the engine may have now, or may get from a change on its way, is
counted. So it holds all acknowledged messages. The next master is one of them, and after it is frozen, the old master
gets no report from it any more. So an old master can acknowledge only what the new master has. It may do so even after
the election, for a report that was on its way; it cannot acknowledge a message that the new master lacks.

**Leases decide only when somebody stands.** A lost lease alone changes nothing. A follower stands when the master's
lease is gone and its connection is silent, or when its connection was reset and its port refuses. Among frozen members
the longest log stands first, and others a little later, so that also unconfirmed messages survive.

A master hands over when a person asks for it, when its process stops, or when its disk fails: it appends nothing more,
waits until its successor has everything, and makes it the next epoch's master.

A member that returns compares its epochs with the master's (``history.py``), sets aside what only it has, and copies.
It joins once it has everything that was confirmed.

**A person is needed** when no member of the in-sync set is left (all lost power with unflushed bytes, or their disks),
when the engine's document is older than one that was seen before, when it belongs to another set, or when two members
have one name. The member says so, names the next step, and waits.

Modules
=======

``machine.py`` is the state machine of one member; ``states.py`` has its states and transitions as a table, and
``events.py`` its input and output. Its parts are ``in_sync.py``, ``engine_view.py``, ``solid.py``, ``candidate.py``
and ``twins.py``. It has no sockets, files or clocks, so the same machine runs in brokers and in
``tests/failover/simulator``. ``engines`` has the engines, ``document.py``, ``identity.py`` and ``history.py`` the data.
"""
