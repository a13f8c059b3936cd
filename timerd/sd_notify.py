"""systemd's notification protocol (sd_notify(3)) on the standard library: one datagram for each state."""

from __future__ import annotations

import os
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


def notify(state: str) -> bool:
    """Notify the service manager. Returns False if none listens. Never raises: a daemon runs without one, too."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    if address[0] == "@":
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagrams:
            datagrams.setblocking(False)
            datagrams.sendto(state.encode(), address)
    except OSError:
        return False
    return True


def watchdog_ns() -> int:
    """How long the service manager waits for a sign of life, in nanoseconds; 0 when it does not watch this process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    try:
        return max(0, int(os.environ.get("WATCHDOG_USEC", "0"))) * 1_000
    except ValueError:
        return 0
