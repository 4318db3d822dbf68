"""Messages that retention has deleted from the store and that are read from an archive by a separate process
(:mod:`cometmq.tier`).
"""
