"""Peers in a pid namespace that the daemon cannot see: sidecars in containers of their own."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

LISTEN = """
import socket, sys
from timerd.host.listener import process_of
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    print("listens", flush=True)
    accepted = [listening.accept()[0] for _ in range(int(sys.argv[2]))]
    print(*(process_of(each.fileno()) for each in accepted), flush=True)
    sys.stdin.read()
"""
CONNECT = """
import socket, sys
connected = [socket.socket(socket.AF_UNIX) for _ in range(2)]
for each in connected:
    each.connect(sys.argv[1])
sys.stdin.read()
"""
IS_NEW = tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 9)


def piped(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.root("makes a pid namespace")
@pytest.mark.skipif(not IS_NEW, reason="before Linux 6.9 the inode of a pidfd is the same for all processes")
def test_processes_of_another_pid_namespace_are_told_apart(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with piped("unshare", "--pid", "--fork", sys.executable, "-c", LISTEN, path, "4") as listener:
        assert listener.stdout is not None and listener.stdout.readline() == "listens\n"
        with piped(sys.executable, "-c", CONNECT, path) as one, piped(sys.executable, "-c", CONNECT, path) as two:
            processes = list(map(int, listener.stdout.readline().split()))
            for each in (one, two, listener):
                each.communicate("")
    assert len(processes) == 4 and max(processes) < 0, processes
    assert sorted(map(processes.count, set(processes))) == [2, 2], "each process has one number"
