"""timerd for asyncio: the same surface, without a thread.

    from timerd import aio                       # or td.aio

    client = aio.client()                        # one for this process and this loop
    outcome = await client.register("inbox/7", timeout=30)
    client.fire("inbox/8", value=b"hello")

`register`, `fire` and the like return at once. An operation, a batch, and a call that asks the daemon are awaited.
Awaiting an operation gives its outcome; a cancelled await withdraws the operation. Calls in one iteration of the loop
are sent as one frame. If the window is full, a call raises BackpressureError at once: `await client.room()` first. A
client belongs to the loop that first uses it.
"""

from timerd_client import conditions, errors
from timerd_client.conditions import *  # noqa: F403
from timerd_client.discovery.settings import configure
from timerd_client.errors import *  # noqa: F403
from timerd_client.events.event import Event, Gap
from timerd_client.groups.listing import CallInfo, CallState
from timerd_client.groups.registry import Calls
from timerd_client.groups.steps import Call
from timerd_client.link.batch import Row
from timerd_client.link.operation import GroupOperation
from timerd_client.mark import Mark
from timerd_client.outcome import Outcome, State
from timerd_client.protocol.state import LinkState
from timerd_client.protocol.statistics import Statistics
from timerd_client.types import (
    CallExists,
    IfExists,
    Key,
    Keys,
    OrphanPolicy,
    Patience,
    Payload,
    Timeout,
    Until,
    WhenLost,
)

from .client import Client, connect
from .client import Connecting as Connecting
from .delayed import DelayedOperation
from .member import AioGroupOutcome as GroupOutcome
from .member import AioScheduledCall as ScheduledCall
from .operation import AioBatch as Batch
from .operation import AioOperation as Operation
from .process import client
from .purgatory import Purgatory
from .subscription import Subscription
from .waiting import Waited as Waited
from .waiting import as_completed, wait

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
