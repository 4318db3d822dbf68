"""The jobs of ``cometmq pipeline``: a folder for each large job, a file for each small one.

A job is a frozen class in :mod:`.options`, a function ``@job(ThatClass)`` (:mod:`.job`) that accepts an instance of it
and returns a subclass of :class:`.report.Report`, and a line in ``cometmq.cli.jobs.pipeline``. The function's
signature, the options of the command, the header of the page and ``docs/job-options.md`` are generated from the class;
text, JSON and HTML are generated from the report. :mod:`.run` contains the code that all jobs share,
:mod:`.message_source` the sources that jobs read.
"""
