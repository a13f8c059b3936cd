"""Spark's daemon of Python workers. It imports modules once, before it forks, so workers need not import them."""

from __future__ import annotations

import os

# A forked process has one thread only, so imports before the fork must start none.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"

import numpy  # noqa: F401
import pandas  # noqa: F401
import pyarrow.compute  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    assert os.listdir("/proc/self/task") == [str(os.getpid())], "imports before a fork must start no thread"
    manager()
