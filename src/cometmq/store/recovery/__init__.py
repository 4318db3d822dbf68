"""Recovery opens a store after any stop, and makes its log, queues and index consistent again.

Theory of operation. The log is the source of truth; queues and index are derived from it.

What is trusted, the strongest first:

1. a record whose magic, own log offset, lengths and CRC are right;
2. ``comet/position.json`` (:mod:`.position`): the log offset up to which everything was consistent and flushed, and
   the end of each queue. It counts if the log still has the record that it names, by that record's CRC. If not, it may
   still prove that the log was longer;
3. a *sound* unit, which points to a record that names its queue and queue offset (:mod:`.queue_units`);
4. fields that no CRC covers, as far as they continue their queue's sequence (:mod:`.queue_sequence`);
5. after a crash, Apache's ``checkpoint``: from its time on, records are read again.

File names, file sizes and the configuration prove nothing.

The steps:

1. :mod:`.opening` locks the store, determines the sizes of its files, and refuses a store that a newer version wrote or
   whose log is missing (:mod:`.lost_log`). So far, nothing is changed.
2. :mod:`.load` finds the files of the log, and quarantines foreign ones.
3. :mod:`.recovery` compares the position with the log; :mod:`.queue_recovery` and :mod:`.known_files` check the queues'
   ends. If all agree, the log is read from the position on.
4. Otherwise each queue ends at its last sound unit, and :mod:`.missing_units` reads every part of the log that no unit
   covers.
5. :mod:`.log_replay` reads the log to its end, and writes units and index entries over existing ones. Records from
   before their topic was deleted (:mod:`.known_topics`) get none.
6. :mod:`.end_of_log` and :mod:`.lost_ends` set the end of the log. What follows it and the ends of queues becomes zero,
   since stale bytes would later count as records or units.

The repairs:

* A damaged part of the log becomes records that every reader skips (:mod:`.damages`). Later records stay where they
  are, and the log does not end there.
* A missing file between others is created again, full of such records.
* A missing unit is written again from its record, at the record's queue offset.
* The unit of a lost message points to the record that replaces it, or is blank. No other message gets its offset.
* A log or queue that lost its end continues after the highest offset ever assigned.
* An index file that is not sound is quarantined, and its part of the log indexed again.

Invariants:

* Bytes are copied into the quarantine before they are overwritten or truncated; if that is impossible, they stay.
* The log never ends below an offset that a position or a sound unit proves, and a queue never below its end in the
  position: an offset that a consumer may have committed is not assigned twice. Only a slave continues where its log
  ends, since its master sends the rest.
* A message is lost only if its own bytes are damaged. A slave's log ends at damage unless something proves that it
  continues.

Fault model. The process can die between any two system calls, also during recovery, so every step can be repeated. Any
byte of any file can be wrong; files can be truncated, missing, or from another store.
"""
