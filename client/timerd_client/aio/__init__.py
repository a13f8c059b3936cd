"""timerd for asyncio: the same surface, without a thread.

    from timerd_client import aio

    client = await aio.client()                  # this process's and this loop's own
    outcome = await client.register("inbox/7", timeout=30)
    client.fire("inbox/8", value=b"hello")

`register`, `fire` and their kin return at once; what is awaited is an operation, a batch, and what asks the daemon.
Awaiting an operation gives its outcome; a cancelled await cancels the operation. What piles up while the loop is busy
with one iteration goes out as one batch. In a full window a call raises BackpressureError at once: `await
client.room()` first. A client belongs to the loop it was made in.
"""

from .client import *  # noqa: F403
from .client import Waited as Waited
from .client import __all__ as __all__
