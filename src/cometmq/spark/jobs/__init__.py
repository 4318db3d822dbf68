"""The jobs of ``cometmq pipeline``. Each large job has a folder, each small job has a file.

A job is a frozen class in :mod:`.options`, a function ``@job(ThatClass)`` (:mod:`.job`) that accepts an instance of it
and returns a subclass of :class:`.report.report.Report`, and a line in ``cometmq.cli.jobs.pipeline``. The function's
signature, the options of the command, the header of the page and ``docs/job-options.md`` are generated from the class;
text, JSON and HTML are generated from the report. :mod:`.run` contains the code that all jobs share,
and :mod:`.message_source` the sources that jobs read.
"""
