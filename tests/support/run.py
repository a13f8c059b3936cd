"""Runs a program of the tests, with their helpers on its path.

python tests/support/run.py simulation --seed 7 --trace      the whole system simulated
python tests/support/run.py fuzz daemon                      coverage-guided fuzzing
python tests/support/run.py clientprogram 1 24               random programs over a client (modelprogram: its model)
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
sys.path[:0] = [str(SUPPORT), str(SUPPORT / "real")]

import interpreted  # noqa: E402, F401 - before anything of timerd is imported
from trees import python_path  # noqa: E402

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.path[:0] = python_path().split(os.pathsep)
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
