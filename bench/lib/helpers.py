"""Makes modules of tests/support importable, as pytest does. Import this module before all others.

The simulation derives classes from classes of modules that the build compiles. So these modules have to be imported
from their sources: interpreted.py has to come before any import of timerd, also before bench/lib/common.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests"

sys.path.insert(0, str(TESTS))
from support.real.trees import python_path  # noqa: E402

sys.path[:0] = python_path().split(os.pathsep)
import support.real.interpreted  # noqa: E402, F401
