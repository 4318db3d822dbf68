"""The sink ``df.write.format("rocketmq")``: rows become messages, in batches, with a guarantee chosen by name.

=================  ==============================================================================
``options``        what a writer is asked for
``columns``        the columns of a row: names, types, checks of a schema
``encoding``       Arrow batches → the bytes of messages, vectorised; bad rows are found here
``placing``        which queue a row goes to, and how rows are cut into chunks
``delivery``       one chunk at a time in each queue; busy and broken brokers are waited for
``guards``         what keeps rows of a repeated task from being stored twice: ``effectively_once``,
                   ``exactly_once``
``task``           one Spark task: rows in, chunks out, a commit message
``writers``        what Spark calls
=================  ==============================================================================
"""
