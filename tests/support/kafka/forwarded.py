"""A cluster of one broker in a network namespace, to which one forwarded port leads.

As from a container with one published port, or through `ssh -L`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from tempfile import TemporaryDirectory

# A program that runs a cluster of one broker in a network namespace of its own. The test process accepts connections
# outside, and sends their descriptors: the program connects each of them to the cluster's port.
IN_NAMESPACE = """
import contextlib, ctypes, fcntl, os, socket, struct, subprocess, sys, threading
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
INTERFACE = struct.Struct("16sh22x")
PIECE = 1 << 16


def enter_namespace() -> bool:
    # Go on in a new network namespace, whose loopback is up. Returns False if that is not allowed.
    libc, uid, gid = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET):
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
            return False
        Path("/proc/self/setgroups").write_text("deny")
        for name, number in (("uid", uid), ("gid", gid)):  # else all files seem to be another user's
            Path("/proc/self/" + name + "_map").write_text("%d %d 1" % (number, number))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        name, flags = INTERFACE.unpack(fcntl.ioctl(made, SIOCGIFFLAGS, INTERFACE.pack(b"lo", 0)))
        fcntl.ioctl(made, SIOCSIFFLAGS, INTERFACE.pack(name, flags | IFF_UP))
    return True


def pump(source: socket.socket, target: socket.socket) -> None:
    # Copy all bytes, and then the end.
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def main(port: str, data: str, descriptor: str) -> None:
    # Run the cluster, and connect each connection that is handed over to its port.
    if not enter_namespace():
        return
    flags = ["--port", port, "--workers", "1", "--replicas", "1", "--data", data + "/kafka"]
    flags += ["--runtime-dir", data + "/run"]
    flags += ["--bind", "0.0.0.0", "--advertised-host", "localhost", "--json", "--commands"]
    Path(data, "run").mkdir(mode=0o700)
    # The cluster ends with its standard input, so it ends with this process.
    cluster = subprocess.Popen(
        [sys.executable, "-m", "timerd_kafka", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert cluster.stdout is not None
    line = cluster.stdout.readline()
    sys.stdout.buffer.write(line or b"{}\\n")
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


main(*sys.argv[1:])
"""


@contextlib.contextmanager
def forwarded(port: int) -> Iterator[str]:
    """Run a cluster of one broker in a network namespace. From outside, only `port` leads to it.

    Yields the bootstrap address, which is the same inside and outside.

    Raises PermissionError if this process may make no namespace.
    """
    outer, inner = socket.socketpair()
    with (
        outer,
        inner,
        socket.create_server(("127.0.0.1", port)) as listener,
        TemporaryDirectory(prefix="kafka-") as data,  # the path is short, because the path of a Unix socket must be
    ):
        command = [sys.executable, "-c", IN_NAMESPACE, str(port), data, str(inner.fileno())]
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
