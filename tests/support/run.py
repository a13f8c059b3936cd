"""Runs a program of the tests, by the name of its module, with the tests' helpers on its path.

python tests/support/run.py simulation.engine --seed 7 --trace      the whole system simulated
python tests/support/run.py support.fuzz daemon                     coverage-guided fuzzing
python tests/support/run.py hot.clientprogram 1 24                  random programs that use a client
python tests/support/run.py hot.modelprogram 1 24                   the same programs, on the model of a client
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # not this folder: its `kafka` would hide the package `kafka`

import support.real.interpreted  # noqa: E402, F401 - before anything of timerd is imported
from support.real.trees import python_path  # noqa: E402

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.path[:0] = python_path().split(os.pathsep)
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
