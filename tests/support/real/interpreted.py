"""In the tests' process, the modules that the build compiles (timerd/compiled.txt) are imported from their sources.

So a test may replace their methods, and the simulation measures the coverage of their lines. Other processes that tests
start, above all daemons, run the compiled modules.

If a compiled module is older than its source, the tests end at once. Otherwise daemons would run older code than the
tests' process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from os.path import exists, getmtime, join
from pathlib import Path
from types import ModuleType

from support.real.trees import ROOT

LISTED = (ROOT / "timerd" / "compiled.txt").read_text().split()
SOURCES = {line.removeprefix("client/").replace("/", "."): ROOT / f"{line}.py" for line in LISTED}


class Interpreted:
    """A finder in sys.meta_path, before the finder of the installed packages."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return spec_from_file_location(name, SOURCES[name]) if name in SOURCES else None


def is_stale(name: str, source: Path) -> bool:
    """Whether the installed form of a module was compiled from an older source."""
    compiled = name.replace(".", "/") + EXTENSION_SUFFIXES[0]
    return any(
        exists(found := join(folder, compiled)) and getmtime(found) < getmtime(source)  # False if it is unreadable
        for folder in sys.path
    )


if stale := [name for name, source in SOURCES.items() if is_stale(name, source)]:
    sys.exit(f"compiled from an older source: {', '.join(stale)}. Run: make build")
sys.meta_path.insert(0, Interpreted)
