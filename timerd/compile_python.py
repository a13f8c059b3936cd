"""Compiles modules of Python to C with mypyc: a step of the build.

    python compile_python.py OUT GROUP MODULE.py...

For example, of timerd/conductor/turn.py this makes OUT/timerd/conductor/turn.c, which is small, and a part of
OUT/__native_GROUP.c, which has the code of all modules. What is imported as timerd.conductor.turn is then compiled, and
its source stays beside it.

Why: on a quiet machine the daemon's turn for one frame runs from cold caches, and then the interpreter is most of it.
The modules are as they were: where nothing can be compiled, they run as they stand.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OPTIONS = ["--explicit-package-bases", "--namespace-packages", "--ignore-missing-imports", "--python-version=3.11"]


def main() -> None:
    out, group, *modules = sys.argv[1:]
    os.environ["MYPYPATH"] = os.pathsep.join(str(ROOT / each) for each in (".", "client", "shm_layout"))
    os.chdir(ROOT)
    from mypyc.build import mypycify

    mypycify(
        [*OPTIONS, f"--cache-dir={out}/types_of_{group}", *modules], target_dir=out, multi_file=False, group_name=group
    )


if __name__ == "__main__":
    main()
