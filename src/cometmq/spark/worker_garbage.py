"""Keeps the pause between two tasks of a Python worker short: the search for garbage that Spark makes in it.

``pyspark.daemon`` collects garbage after each task, before the worker takes the next one. It would look through
everything that was ever imported, for some 45 ms.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def leave_out_what_stays() -> None:
    """Take what there is now, modules above all, out of every later search; call it at the end of a task.

    Done once in each process: what is let go of afterwards is found as ever.
    """
    gc.collect()
    gc.freeze()
