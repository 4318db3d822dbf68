"""The sink ``df.write.format("rocketmq")``: rows are sent as messages in batches. The user chooses the delivery
guarantee by name.

====================  ===========================================================================
``options``           options and columns of a writer, and the check of a schema
``writer``            the classes that Spark calls, and one Spark task: rows in, a commit message out
``encoding``          Arrow batches → the bytes of messages and their ids, vectorised; finds bad rows
``placing``           routes of topics; chooses the queue of each row, and cuts rows into chunks
``delivery``          sends chunks by :mod:`cometmq.client.blocking.sender`, as a row selection allows
``effectively_once``  the row selection for any broker: asks which rows are stored
``exactly_once``      the row selection for brokers with producer sequences: numbers the rows
====================  ===========================================================================
"""
