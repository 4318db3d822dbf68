"""The client without an event loop: brokers and nameservers as Spark's tasks and scripts ask them.

``connections`` lends connections that outlive a task; ``cluster`` asks nameservers for routes and brokers for anything;
``offsets`` asks brokers for offsets; ``sender`` sends what an ``outbox`` says, and says again. The socket beneath is
:mod:`cometmq.remoting.blocking`.
"""
