"""Lets a module be imported that needs a package which cannot be imported, because it is not compiled yet.

    with stand_in("timerd_client", "timerctl"):
        import timerctl         # every name that it takes from timerd_client is an empty class

It is for modules that use these names only in functions which nobody calls. If the package has been imported already,
its own names are used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Empty(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(MetaPathFinder, Loader):
    """Finds the package, and all modules below it."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == self._package else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


@contextmanager
def stand_in(package: str, *users: str) -> Iterator[None]:
    """Put empty modules in place of the package. At the end they are forgotten, with the packages that use them."""
    if package in sys.modules:
        yield
        return
    finder = _Finder(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in (package, *users)]:
            del sys.modules[name]
