"""A process of the load test: python -m timerctl.load.harness.worker DESCRIPTOR

It is in a Unix session of its own (setsid), so that Ctrl-C reaches only the load test, which then sends Stop. When the
load test has ended (end of file), the process ends as well. The end of its client cancels its operations.
"""

from __future__ import annotations

import gc
import queue
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from timerctl.exits import Exit, exit_of
from timerd_shm.declare.errors import TimerdError

from .firer import Firer
from .messages import Failure, Ready, Role, Start, Stop, Task
from .part import Part
from .pending import Pending
from .registrar import Registrar

PARTS: dict[Role, type[Part]] = {Role.REGISTRAR: Registrar, Role.FIRER: Firer, Role.PENDING: Pending}


def main(descriptor: int) -> int:
    """Play the part that the first message gives."""
    connection: Connection = Connection(descriptor)
    task: Task = connection.recv()
    try:
        part = PARTS[task.role](task)
    except TimerdError as error:
        with suppress(OSError):  # the load test may have ended
            connection.send(Failure(str(error), exit_of(error)))
        return Exit.PROBLEM
    messages: queue.SimpleQueue[Start | Stop] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(connection, part, messages), daemon=True).start()
    try:
        part.prepare()
        connection.send(Ready(part.client._protocol.session.topic))
        gc.collect()
        gc.disable()  # a run makes no reference cycles, and a collection would visit all pending operations
        start = messages.get()
        if isinstance(start, Start):
            connection.send(part.play(start.start_ns))
    except TimerdError as error:
        with suppress(OSError):
            connection.send(Failure(str(error), exit_of(error)))
    except (BrokenPipeError, ConnectionResetError):
        pass  # the load test has ended, and needs no answer
    finally:
        part.close()
    return Exit.OK


def listen(connection: Connection, part: Part, messages: queue.SimpleQueue[Start | Stop]) -> None:
    """Receive the load test's messages, in a thread. End of file means Stop."""
    while not part.stopped:
        try:
            message: Start | Stop = connection.recv()
        except (EOFError, OSError):
            message = Stop()
        part.stopped = isinstance(message, Stop)
        messages.put(message)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
