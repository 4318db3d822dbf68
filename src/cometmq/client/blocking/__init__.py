"""The client for code with no event loop, for example Spark tasks and scripts.

``connections`` lends connections that outlive a task; ``cluster`` sends requests to nameservers and brokers;
``offsets`` queries offsets; ``sender`` sends the requests of an ``outbox`` and repeats them after failures. The socket
layer is
:mod:`cometmq.remoting.blocking`.
"""
