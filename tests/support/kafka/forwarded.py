"""A cluster in a network namespace of its own, of which one port is forwarded: as of a container, or by `ssh -L`."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
INTERFACE = struct.Struct("16sh22x")
PIECE = 1 << 16


@contextlib.contextmanager
def forwarded(port: int, data: Path) -> Iterator[str]:
    """Run a cluster of one broker in a namespace. Gives its bootstrap address outside, where only `port` leads to it.

    Raises PermissionError if this process may make no namespace.
    """
    outer, inner = socket.socketpair()
    with outer, inner, socket.create_server(("127.0.0.1", port)) as listener:
        command = [sys.executable, __file__, str(port), str(data), str(inner.fileno())]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[inner.fileno()])
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise PermissionError("no network namespace can be made here")
            bootstrap = json.loads(line)["bootstrap"]
            threading.Thread(target=hand_over, args=(listener, outer), daemon=True).start()
            yield bootstrap
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            outer.shutdown(socket.SHUT_RDWR)  # the process ends its cluster, and itself
            process.wait()
            process.stdout.close()


def hand_over(listener: socket.socket, to: socket.socket) -> None:
    """Send each connection to the process in the namespace."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                socket.send_fds(to, [b"c"], [connection.fileno()])


# in the namespace -----------------------------------------------------------------------------------------------------


def enter_namespace() -> bool:
    """Go on in a new network namespace, whose loopback is up. Returns False if that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        name, flags = INTERFACE.unpack(fcntl.ioctl(made, SIOCGIFFLAGS, INTERFACE.pack(b"lo", 0)))
        fcntl.ioctl(made, SIOCSIFFLAGS, INTERFACE.pack(name, flags | IFF_UP))
    return True


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy all bytes, and then the end."""
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def main(port: str, data: str, descriptor: str) -> None:
    """Run the cluster, and connect each connection that is handed over to its port."""
    if not enter_namespace():
        return
    flags = [
        "--port",
        port,
        "--workers",
        "1",
        "--replicas",
        "1",
        "--data",
        f"{data}/kafka",
        "--runtime-dir",
        f"{data}/run",
    ]
    flags += ["--bind", "0.0.0.0", "--advertised-host", "localhost", "--json", "--commands"]
    Path(data, "run").mkdir(mode=0o700)
    # The cluster ends with its standard input, so it ends with this process.
    cluster = subprocess.Popen(
        [sys.executable, "-m", "timerd_kafka", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert cluster.stdout is not None
    line = cluster.stdout.readline()
    sys.stdout.buffer.write(line or b"{}\n")
    sys.stdout.flush()
    if not line:
        return
    with socket.socket(fileno=int(descriptor)) as handed:
        while True:
            _, descriptors, _, _ = socket.recv_fds(handed, 1, 1)
            if not descriptors:
                break
            outside = socket.socket(fileno=descriptors[0])
            outside.setblocking(True)
            inside = socket.create_connection(("127.0.0.1", int(port)))
            for pair in ((outside, inside), (inside, outside)):
                threading.Thread(target=pump, args=pair, daemon=True).start()
    assert cluster.stdin is not None
    cluster.stdin.close()
    cluster.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
