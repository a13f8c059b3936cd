"""Forks the processes of clients: python -m clients.nursery FD. So the slow imports of clients in Python run only once.

Each message at the socket FD is a plan as JSON, with the files for the process's input, output and errors. The answer
is the process's pid, with a pidfd. When the socket is closed, the nursery kills the processes and ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from typing import Any

import aiokafka  # noqa: F401
import confluent_kafka  # noqa: F401
import kafka  # noqa: F401

from clients import errand, kcat, peer, raw_peer, roster

PLAN_MAX = 1 << 20  # bytes


def serve(asked: socket.socket) -> None:
    """Fork a process for each plan, until the socket is closed."""
    children: set[int] = set()
    while True:
        message, files, _, _ = socket.recv_fds(asked, PLAN_MAX, 3)
        reap(children)
        if not message:
            break
        child = os.fork()
        if not child:
            asked.close()
            live(json.loads(message), files)
        children.add(child)
        for file in files:
            os.close(file)
        handle = os.pidfd_open(child)  # the child is not reaped yet, so no other process can have its pid
        socket.send_fds(asked, [b"%d" % child], [handle])
        os.close(handle)
    for child in children:
        os.kill(child, signal.SIGKILL)


def reap(children: set[int]) -> None:
    """Reap the processes that have ended."""
    while children and (ended := os.waitpid(-1, os.WNOHANG)[0]):
        children.discard(ended)


def live(plan: dict[str, Any], files: list[int]) -> None:
    """Play the plan's role in the forked child, and end the child. Does not return."""
    status = 1
    try:
        os.setsid()  # a session of its own, as the nursery has: Ctrl-C ends the acceptance, which ends the clients
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        if command := roster.command_of(plan):
            os.execvpe(command[0], command, roster.environment())
        errand.run(kcat.ROLES if plan["client"] == "kcat" else {**peer.ROLES, **raw_peer.ROLES}, plan)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
