"""Compiles modules of Python to C with mypyc: a step of the build.

    python compile_python.py OUT GROUP MODULE.py...

For example, from timerd/conductor/turn.py it makes OUT/timerd/conductor/turn.c, which is small, and a part of
OUT/__native_GROUP.c, which has the code of all modules. `import timerd.conductor.turn` then loads the compiled module.
The source stays beside it.

Why: on a quiet machine the daemon's turn for one frame begins with cold caches. Then the interpreter takes most of the
turn's time. The sources do not change: where nothing can be compiled, the interpreter runs them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).absolute().parent.parent
FOLDERS = [ROOT / "client", ROOT / "shm_layout", ROOT]  # of packages
OPTIONS = ["--explicit-package-bases", "--namespace-packages", "--ignore-missing-imports", "--python-version=3.11"]


def main() -> None:
    out, group, *modules = sys.argv[1:]
    os.environ["MYPYPATH"] = os.pathsep.join(map(str, FOLDERS))
    # mypyc writes each path into the C code as it is given here: tracebacks show it. So give no path of this machine.
    folder = next(each for each in FOLDERS if Path(modules[0]).is_relative_to(each))
    os.chdir(folder)
    paths = [str(Path(each).relative_to(folder)) for each in modules]
    from mypyc.build import mypycify

    mypycify(
        [*OPTIONS, f"--cache-dir={out}/types_of_{group}", *paths], target_dir=out, multi_file=False, group_name=group
    )


if __name__ == "__main__":
    main()
