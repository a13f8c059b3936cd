"""Plays roles with kcat, a client for the command line: writes its input, and reads its output.

If this process is killed, its kcat is killed, too.
"""

from __future__ import annotations

import ctypes
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from clients.errand import Role, say, stop
from clients.peer import AFTER_S, PATIENCE_S, SIZE, is_over

DELIVERED = re.compile(r"% Message delivered to partition \d+ \(offset (-?\d+)\)")
FAILED = re.compile(r"% Delivery failed for message: (.*)")
THROTTLED = re.compile(r"% Broker .* throttled request for (\d+)ms")
CHANGED = re.compile(r"(assigned|revoked): (.*)")
PARTITION = re.compile(r"\[(\d+)\]")
FOUND = re.compile(r"\S+ \[(\d+)\] offset (-?\d+)")
ROW = "%p %o %s\\n"
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def command(plan: dict[str, Any], *mode: str, **settings: object) -> list[str]:
    """The command line, with settings of librdkafka: underscores stand for dots."""
    given = {"client_id": plan["name"], **settings}
    if plan.get("session_ms"):
        given |= {"session_timeout_ms": plan["session_ms"], "heartbeat_interval_ms": plan["heartbeat_ms"]}
    if plan.get("instance"):
        given["group_instance_id"] = plan["instance"]
    if plan.get("old"):
        given |= {"api_version_request": "false", "broker_version_fallback": "0.9.0.1", "message_timeout_ms": 3_000}
    pairs = [word for key, value in given.items() for word in ("-X", f"{key.replace('_', '.')}={value}")]
    return ["kcat", "-b", plan["bootstrap"], "-E", "-X", "log_level=2", *pairs, *mode]


def start(words: list[str]) -> subprocess.Popen[str]:
    """Start kcat. The kernel kills it when this process ends."""
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )


class Sender:
    """A kcat that sends to one partition."""

    def __init__(self, plan: dict[str, Any], partition: int) -> None:
        given = plan.get("acks", "all")
        settings: dict[str, object] = {"enable_idempotence": "true"} if given == "all" else {"acks": given}
        # A record that has no room in this queue waits. kcat reports an acknowledgement only when it has read another
        # line: so no one can wait here for an acknowledgement before the next line is sent.
        settings["queue_buffering_max_messages"] = max(1, plan.get("in_flight", 500) // plan["partitions"])
        mode = ["-P", "-vv", "-t", plan["topic"], "-p", str(partition)]
        codec = ["-z", plan["codec"]] if plan.get("codec") else []
        self.process = start(command(plan, *mode, *codec, **settings))
        self.numbers: deque[int] = deque()  # of the records that are not acknowledged
        self.acked: list[tuple[int, int, None]] = []
        self.failed: list[tuple[int, str]] = []
        self.throttles_ms: list[float] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def send(self, number: int, line: str) -> None:
        """Send a record."""
        assert self.process.stdin is not None
        self.numbers.append(number)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End kcat, when all records are answered."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self._thread.join()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            # The records of a partition are answered in their order.
            if found := DELIVERED.match(line):
                self.acked.append((self.numbers.popleft(), int(found[1]), None))
            elif found := FAILED.match(line):
                self.failed.append((self.numbers.popleft(), found[1]))
            elif found := THROTTLED.match(line):
                self.throttles_ms.append(float(found[1]))
            else:
                sys.stderr.write(line)


def produce(plan: dict[str, Any]) -> dict[str, Any]:
    """As `produce` of clients/peer.py, but without the seconds from each record to its acknowledgement."""
    partitions, rate, sent = plan["partitions"], plan.get("rate", 0), 0
    senders = [Sender(plan, number) for number in range(partitions)]
    say(ready=True)
    begun = time.monotonic()
    while not is_over(plan, sent, begun):
        if rate and (early := begun + sent / rate - time.monotonic()) > 0:
            time.sleep(min(early, 0.01))
            continue
        line = f"{plan['tag']} {sent} ".ljust(plan.get("size", SIZE), ".")
        senders[sent % partitions].send(sent, line)
        sent += 1
    for sender in senders:
        sender.close()
    took = time.monotonic() - begun
    return {
        "sent": sent,
        "acked": [one for sender in senders for one in sender.acked],
        "failed": [one for sender in senders for one in sender.failed],
        "seconds": took,
        "throttles_ms": [one for sender in senders for one in sender.throttles_ms],
    }


def consume(plan: dict[str, Any]) -> dict[str, Any]:
    """As `consume` of clients/peer.py."""
    if plan["role"] == "member":
        mode = ["-G", plan["group"], *(plan.get("topics") or [plan["topic"]])]
        words = command(plan, "-u", "-f", ROW, *mode, auto_offset_reset="earliest")
    else:
        words = command(plan, "-C", "-u", "-f", ROW, "-o", "beginning", "-t", plan["topic"])
    process = start(words)
    came: queue.SimpleQueue[tuple[int, int, str]] = queue.SimpleQueue()
    threads = [
        threading.Thread(target=read_rows, args=(process, came)),
        threading.Thread(target=read_changes, args=(process, plan["role"] == "member")),
    ]
    for thread in threads:
        thread.start()
    say(ready=True)
    rows: list[tuple[int, int, str]] = []
    places: set[tuple[int, int]] = set()
    begun = last = time.monotonic()
    enough = plan.get("expect")
    while not stop.is_set():
        got = list(waiting_in(came))
        now = time.monotonic()
        if got:
            rows += got
            places.update((partition, offset) for partition, offset, _ in got)
            last = now
            say(read=len(places))
        elif enough is not None and now > last + (AFTER_S if len(rows) >= enough else plan.get("patience", PATIENCE_S)):
            break
        elif process.poll() is not None:
            raise RuntimeError(f"kcat has ended with {process.returncode}")
    say(closing=True)
    process.send_signal(signal.SIGTERM)
    process.wait()
    say(closed=True)
    for thread in threads:
        thread.join()
    rows += list(waiting_in(came))
    return {"rows": rows, "seconds": last - begun}


def waiting_in(came: queue.SimpleQueue[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Wait for a row, for a moment. Yields all that are there."""
    try:
        yield came.get(timeout=0.05)
        while True:
            yield came.get_nowait()
    except queue.Empty:
        return


def read_rows(process: subprocess.Popen[str], came: queue.SimpleQueue[tuple[int, int, str]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        partition, offset, value = line.rstrip("\n").split(" ", 2)
        came.put((int(partition), int(offset), value.rstrip(". ")))


def read_changes(process: subprocess.Popen[str], tells: bool) -> None:
    """Print the partitions of a member whenever they change."""
    assert process.stderr is not None
    for line in process.stderr:
        found = CHANGED.search(line)
        if found is None:
            sys.stderr.write(line)
        elif tells:
            mine = sorted(int(number) for number in PARTITION.findall(found[2]))
            say(assigned=mine if found[1] == "assigned" else [])


def ask(plan: dict[str, Any]) -> dict[str, Any]:
    """As `ask` of clients/peer.py, for the offsets of a time alone."""
    asked = [word for number in range(plan["partitions"]) for word in ("-t", f"{plan['topic']}:{number}:{plan['at']}")]
    ran = subprocess.run(command(plan, "-Q", *asked), capture_output=True, text=True, check=True)
    return {"at": {int(number): int(offset) for number, offset in FOUND.findall(ran.stdout)}, "largest": None}


ROLES: dict[str, Role] = {"produce": produce, "consume": consume, "member": consume, "ask": ask}
