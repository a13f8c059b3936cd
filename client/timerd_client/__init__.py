"""The client of timerd: delayed operations, watch keys and timers for every process of a host.

    import timerd as td                     # or timerd_client: the same

    client = td.client()
    op = client.register("inbox/7", timeout=30)
    client.fire("inbox/7", value=b"hello")  # from any process
    op.result().value

`timerd_client.aio` has the same surface for asyncio. PROTOCOL.md tells what goes over the wire.
"""

from . import errors
from .batch import ThreadedBatch as Batch
from .calls import Call
from .conditions import ALL, ALL_SETTLED, ANY, When, at_least, total
from .connection import connect
from .delayed import Delayed
from .errors import *  # noqa: F403
from .mark import Mark
from .member import ThreadedGroupOutcome as GroupOutcome
from .operation import ThreadedOperation as Operation
from .outcome import Outcome, State
from .process import client, configure
from .purgatory import Purgatory
from .threaded import Client
from .waiting import as_completed, wait

__all__ = [
    "ALL",
    "ALL_SETTLED",
    "ANY",
    "Batch",
    "Call",
    "Client",
    "Delayed",
    "GroupOutcome",
    "Mark",
    "Operation",
    "Outcome",
    "Purgatory",
    "State",
    "When",
    "as_completed",
    "at_least",
    "client",
    "configure",
    "connect",
    "total",
    "wait",
]
__all__ += errors.__all__
