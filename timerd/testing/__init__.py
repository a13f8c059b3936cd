"""For tests of programs that use timerd; docs/howto/testing.md says how.

    plugin     the fixtures of pytest
    real/      a daemon of its own for a session of tests, with an arena of its own for each test
    clients    the clients of this process in a test: each connects anew
    manual/    a daemon and its clients in this process, on a clock that a test moves

`from timerd.testing import Daemon, Manual` imports the classes of what fixtures give, for annotations. The names in
`__all__` are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .manual.errors import HangsError as HangsError
    from .manual.errors import WouldBlockError as WouldBlockError
    from .manual.manual import Manual as Manual
    from .real.daemon import Daemon as Daemon
    from .real.daemon import DaemonEndedError as DaemonEndedError

_PLACES = {
    "Manual": "manual.manual",
    "HangsError": "manual.errors",
    "WouldBlockError": "manual.errors",
    "Daemon": "real.daemon",
    "DaemonEndedError": "real.daemon",
}
__all__ = ["Daemon", "DaemonEndedError", "HangsError", "Manual", "WouldBlockError"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
