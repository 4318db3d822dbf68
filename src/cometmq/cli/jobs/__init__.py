"""The Spark jobs of ``cometmq pipeline``: one module a job."""
