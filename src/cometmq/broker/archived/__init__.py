"""Messages that retention has deleted, read from an archive by a process of its own (:mod:`cometmq.tier`)."""
