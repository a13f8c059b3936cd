"""The programs of clientprogram.py over the model of hot/ (hotmodel.py).

    python tests/support/run.py hot.modelprogram FIRST COUNT [STEPS]

The client is the same, but `timerd_client.hot` is imported from the model's file.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

from support.real.trees import ROOT, TESTS


class Model:
    """A finder of sys.meta_path that comes before all others."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "timerd_client.hot":
            return None
        rest = [str(ROOT / "client/timerd_client/hot")]  # commands.py and ids.py belong to both
        return spec_from_file_location(name, TESTS / "hot/hotmodel.py", submodule_search_locations=rest)


if __name__ == "__main__":
    sys.meta_path.insert(0, Model)
    runpy.run_module("hot.clientprogram", run_name="__main__", alter_sys=True)
