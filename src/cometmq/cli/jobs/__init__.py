"""The Spark jobs of ``cometmq pipeline``: one module for each job."""
