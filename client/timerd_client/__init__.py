"""The client of timerd: delayed operations, watch keys and timers for every process of a host.

    import timerd as td                     # or timerd_client: the same

    client = td.client()
    op = client.register("inbox/7", timeout=30)
    client.fire("inbox/7", value=b"hello")  # from any process
    op.result().value

`td.aio` has the same surface for asyncio. PROTOCOL.md says what goes over the wire.
"""

import timerd_client.main_thread  # noqa: F401  # before `threading` is imported

# isort: split

from types import ModuleType
from typing import TYPE_CHECKING

from timerd_client.discovery.settings import configure
from timerd_client.events.event import Event, Gap
from timerd_client.groups.listing import CallInfo, CallState
from timerd_client.groups.registry import Calls
from timerd_client.groups.steps import Call
from timerd_client.link.batch import Row
from timerd_client.link.batch import ThreadedBatch as Batch
from timerd_client.link.operation import GroupOperation
from timerd_client.link.operation import ThreadedOperation as Operation
from timerd_client.protocol.state import LinkState
from timerd_client.protocol.statistics import Statistics
from timerd_client.threaded.client import Client, connect
from timerd_client.threaded.delayed import DelayedOperation
from timerd_client.threaded.member import ThreadedGroupOutcome as GroupOutcome
from timerd_client.threaded.member import ThreadedScheduledCall as ScheduledCall
from timerd_client.threaded.process import client
from timerd_client.threaded.purgatory import Purgatory
from timerd_client.threaded.subscription import Subscription
from timerd_client.threaded.waiting import as_completed, wait

from . import conditions, errors
from .conditions import *  # noqa: F403
from .errors import *  # noqa: F403
from .mark import Mark
from .outcome import Outcome, State
from .types import CallExists, IfExists, Key, Keys, OrphanPolicy, Patience, Payload, Timeout, Until, WhenLost

if TYPE_CHECKING:
    from . import aio as aio

__all__ = [
    "Batch",
    "Call",
    "CallExists",
    "CallInfo",
    "CallState",
    "Calls",
    "Client",
    "DelayedOperation",
    "Event",
    "Gap",
    "GroupOperation",
    "GroupOutcome",
    "IfExists",
    "Key",
    "Keys",
    "LinkState",
    "Mark",
    "Operation",
    "OrphanPolicy",
    "Outcome",
    "Patience",
    "Payload",
    "Purgatory",
    "Row",
    "ScheduledCall",
    "State",
    "Statistics",
    "Subscription",
    "Timeout",
    "Until",
    "WhenLost",
    "as_completed",
    "client",
    "configure",
    "connect",
    "wait",
]
__all__ += conditions.__all__ + errors.__all__


def __getattr__(name: str) -> ModuleType:
    """Import `td.aio` at its first use: importing asyncio takes 50 ms of the start of a process."""
    if name == "aio":
        import importlib

        return importlib.import_module("timerd_client.aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
