"""timerd: `import timerd as td` is the client, loaded at first use; only the daemon loads the compiled core."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timerd_client import *  # noqa: F403  # timerd exports the names that the client exports
    from timerd_client import __all__ as __all__
    from timerd_client import aio as aio


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from timerd_shm.host.version import version

        globals()[name] = version()
        return globals()[name]
    client = importlib.import_module("timerd_client")
    if name == "__all__":
        return client.__all__
    if name not in (*client.__all__, "aio"):
        raise AttributeError(f"module 'timerd' has no attribute {name!r}")
    found = getattr(client, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(["__version__", "aio", *importlib.import_module("timerd_client").__all__])
