"""Lite topics: a parent topic has up to millions of them, each with one ordered queue (RocketMQ 5.5).

Theory of operation. A message to a lite topic is a record of its parent topic. Its properties name the lite topic and
contain its offset there. No file belongs to a lite topic: the *index* (:mod:`.index`) has a few bytes in memory for
each lite topic and message. It is derived from the log. A snapshot (:mod:`.snapshot`) contains it up to a position in
each queue of the parent topic, and a start reads only the records after that.

A group reads each lite topic in order (:mod:`.progress`): a pop hands out the next messages, and no further ones
until these are acknowledged or their invisible time is over. Pops, acknowledgements and changes are entries in the
POP log, so that progress survives a crash and goes over to the next master. Between pops, only an offset for each
group and lite topic remains in memory.

Clients subscribe to lite topics (:mod:`.subscriptions`). A message that arrives makes its lite topic *ready* for the
clients that subscribe to it, and wakes one that waits. A pop looks only at ready lite topics. A lite topic becomes
ready again when a message arrives, when its messages are acknowledged or due, and when a client subscribes to it. So
no wake-up is lost, and none costs more than the subscribers of one lite topic.

An expired message (:mod:`.life_times`) ends a batch. Once it is the next one, it is ended without being handed out.

Invariants.

* The offsets of a lite topic have no gaps, and follow the order of the log.
* A message is handed out only when it is readable.
* The index never has more than the log: what a turn added is taken back if the turn is not stored.
* A lite topic is removed when it is idle for the parent topic's expiration and each group that reads it has read all
  of it, or when retention has deleted its messages.

Fault model. A damaged snapshot is ignored, and the queues of the parent topic are read from their beginning. A lite
topic or parent topic that was removed and made again has only the messages of its last life after a start. A crash
loses the subscriptions of the last seconds; clients send them again every 30 s, and no message is lost in between.
"""
