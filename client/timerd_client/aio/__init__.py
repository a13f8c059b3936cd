"""timerd for asyncio: the same surface, without a thread.

    from timerd_client import aio

    client = await aio.client()                  # this process's and this loop's own
    outcome = await client.register("inbox/7", timeout=30)
    client.fire("inbox/8", value=b"hello")

`register`, `fire` and the like return at once. An operation, a batch, and a call that asks the daemon are awaited.
Awaiting an operation gives its outcome; a cancelled await cancels the operation. Calls in one iteration of the loop are
sent as one frame. In a full window a call raises BackpressureError at once: `await client.room()` first. A client
belongs to the loop that it was made in.
"""

from .client import *  # noqa: F403
from .client import Waited as Waited
from .client import __all__ as __all__
