"""A replicated log: each of three workers is a replica. A write is answered when two of them have it.

    POST /log                         {"id": ..., "text": ...}: 201 and {"offset"}; 200 if a record has this id already
    GET  /log?offset=0&max_wait=25    {"records"} from this offset on, as soon as there are any, else after max_wait

Ask any worker. After 503 or 504 try again, with the same id. A record that was answered with an offset stays at that
offset, whichever workers are killed. Readers see records in order, and only records that two replicas have.

The leader is the replica that holds the lock on a file; the lock ends with the process. The next leader takes over the
longest of the logs that are left. So there is one sequence of records, and each log is always the beginning of it. One
of the three files may be lost. The followers fetch from the leader, as Kafka's followers do: the offset of a fetch
shows the leader which records the follower has. A follower sends a secret, which the leader has written to a file that
other users cannot read.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from flask import Flask, Response, abort, jsonify, request
from werkzeug.serving import make_server

import timerd as td
from timerd_client.operations import Appended, Asked, Available, DelayedFetch, DelayedProduce, Part, Replicas
from timerd_client.web import WSGI

DIRECTORY = Path(os.environ.get("LOG_DIRECTORY", "."))
WRITE_S = float(os.environ.get("LOG_WRITE_S", "5"))  # a write waits at most this long for a second replica
FETCH_S = 1.0  # a follower's fetch waits at most this long for records
HTTP_S = WRITE_S + 5.0
BATCH = 500  # records in an answer
OFFSET_MAX = 2**53  # the largest offset that a reader may ask for
MAX_WAIT_S = 60.0
SECRET = "X-Replica-Secret"  # a header
NAMES = ("0", "1", "2")
QUORUM = 2
LEADER = DIRECTORY / "leader.json"

app = Flask(__name__, static_folder=None)
client = td.client()  # each worker has its own, which connects at its first use


class Log:
    """The file of one replica: a line of JSON for each record, whose offset is its line number."""

    def __init__(self, name: str) -> None:
        self._path = DIRECTORY / f"replica-{name}.log"
        self._path.touch()
        self.lines = read_lines(name)
        os.truncate(self._path, sum(map(len, self.lines)))  # remove a line that a kill has cut
        self.offsets = {json.loads(line)["id"]: offset for offset, line in enumerate(self.lines)}
        self._file = self._path.open("ab", buffering=0)

    def append(self, lines: list[bytes]) -> None:
        """Append the lines. The caller holds the replica's lock."""
        self._file.write(b"".join(lines))
        for line in lines:
            self.offsets[json.loads(line)["id"]] = len(self.lines)
            self.lines.append(line)


def read_lines(name: str) -> list[bytes]:
    """The whole lines of a replica's file."""
    path = DIRECTORY / f"replica-{name}.log"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


class Replica:
    """This worker's log. The worker leads, or follows the leader."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._locks: list[IO[str]] = []  # files that stay open while the process lives
        self.name = next(name for name in self._free_names())
        self.log = Log(self.name)
        self.leads = False
        self.secret = secrets.token_hex(16)
        self.partition = ""  # has the leader's epoch in its name: watermarks never sink, so each epoch needs a new name
        self.replicas = Replicas(client, NAMES, QUORUM)
        server = make_server("127.0.0.1", 0, app, threaded=True)  # for the other workers
        self.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        threading.Thread(target=self._run, daemon=True).start()

    def _free_names(self) -> Any:
        while True:  # the process that had the name before may not have ended yet
            for name in NAMES:
                if self._take(f"replica-{name}.lock"):
                    yield name
            time.sleep(0.05)

    def _take(self, name: str) -> bool:
        """Try to take a lock, which ends with the process. Returns whether this process holds it now."""
        file = (DIRECTORY / name).open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._locks.append(file)
        return True

    def _run(self) -> None:
        while not self._take("leader.lock"):
            try:
                self._follow()
            except (OSError, ValueError, HTTPException, td.TimerdError):  # the leader has ended, or is not there yet
                time.sleep(0.05)
        while not self.leads:
            try:
                self._lead()
            except td.TimerdError:  # the daemon is lost
                time.sleep(0.2)

    def _follow(self) -> None:
        """Fetch from the leader. The request shows the leader which records this replica has, and waits for more."""
        leader = leader_of()
        query = f"replica={self.name}&epoch={leader['epoch']}&offset={len(self.log.lines)}"
        asked = Request(f"{leader['address']}/replica?{query}", headers={SECRET: leader["secret"]})
        with urlopen(asked, timeout=HTTP_S) as answer:
            lines = answer.read().splitlines(keepends=True)
        with epoch_lock(), self.lock:
            if leader_of()["epoch"] != leader["epoch"]:
                return  # the next leader has counted this replica's records
            self.log.append(lines)
        client.fire(f"log/replica/{self.name}")  # waiting readers of this replica look again

    def _lead(self) -> None:
        """Take over the longest log, and wait until a quorum has it too, before anybody writes."""
        with epoch_lock():
            log = leader_of()["log"] if LEADER.exists() else secrets.token_hex(8)
            epoch = secrets.token_hex(8)  # new, because the daemon may still have watermarks of earlier epochs
            draft = LEADER.with_suffix(".draft")
            draft.unlink(missing_ok=True)
            draft.touch(mode=0o600)  # the file has a secret
            draft.write_text(json.dumps({"address": self.address, "log": log, "epoch": epoch, "secret": self.secret}))
            draft.replace(LEADER)
        with self.lock:
            longest = max((read_lines(name) for name in NAMES), key=len)
            self.log.append(longest[len(self.log.lines) :])
            self.partition = f"log/{epoch}"
        self.leads = self.replicated(len(self.log.lines)) if self.log.lines else True

    def replicated(self, end: int) -> bool:
        """Wait until a quorum has the log up to this offset. Returns False if no quorum has it within WRITE_S."""
        self.replicas.acknowledge(self.partition, self.name, end)
        client.fire(self.partition)  # waiting fetches of followers look again
        answers: list[Mapping[str, Part]] = []
        wait = DelayedProduce({self.partition: Appended(end, end)}, self.replicas, answers.append)
        wait.watch(client, timeout=WRITE_S).settled(HTTP_S)
        if not answers or answers[0][self.partition].error:
            return False
        client.advance(committed_key(), end)
        return True


def leader_of() -> dict[str, Any]:
    """The leader's address, epoch and secret, and the id of the log."""
    found: dict[str, Any] = json.loads(LEADER.read_text())
    return found


def committed_key() -> str:
    """The log's watermark: the number of records on a quorum. FileNotFoundError if there was no leader yet."""
    return f"log/{leader_of()['log']}/committed"


@contextmanager
def epoch_lock() -> Iterator[None]:
    """Hold the lock of the epochs: no epoch begins in the meantime."""
    with (DIRECTORY / "epoch.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def try_again(status: int) -> tuple[Response, int]:
    return Response(headers={"Retry-After": "1"}), status


def in_range(name: str, value: Any, most: Any) -> Any:
    """The value of an argument. The answer is 400 if it is not in 0 to `most`."""
    if not 0 <= value <= most:
        abort(400, f"{name}={value}: 0 to {most}")
    return value


replica = Replica()


@app.post("/log")
def write() -> tuple[Response, int]:
    """The leader appends, and waits for a quorum. Any other replica asks the leader."""
    if not replica.leads:
        try:
            leader = leader_of()["address"]
            if leader == replica.address:  # this replica has just become the leader, and has no quorum yet
                return try_again(503)
            asked = Request(f"{leader}/log", request.get_data(), {"Content-Type": "application/json"})
            with urlopen(asked, timeout=HTTP_S) as answer:
                return Response(answer.read(), mimetype="application/json"), answer.status
        except HTTPError as error:
            return try_again(error.code) if error.code >= 500 else (Response(error.read()), error.code)
        except (OSError, HTTPException):
            return try_again(503)
    record = request.get_json()
    if not isinstance(record, dict) or not all(isinstance(record.get(name), str) for name in ("id", "text")):
        abort(400, "a record is {'id': a text, 'text': a text}")
    with replica.lock:
        offset = replica.log.offsets.get(record["id"])
        is_new = offset is None
        if offset is None:
            offset = len(replica.log.lines)
            replica.log.append([json.dumps({"id": record["id"], "text": record["text"]}).encode() + b"\n"])
    if not replica.replicated(offset + 1):
        return try_again(504)
    return jsonify(offset=offset), 201 if is_new else 200


@app.get("/log")
def read() -> Response | tuple[Response, int]:
    """Read from this worker's replica, but only records that a quorum has."""
    try:
        key = committed_key()
    except FileNotFoundError:
        return try_again(503)
    first = in_range("offset", request.args.get("offset", 0, int), OFFSET_MAX)
    max_wait = in_range("max_wait", request.args.get("max_wait", 25.0, float), MAX_WAIT_S)

    def committed() -> int:
        return min(client.watermark(key) or 0, len(replica.log.lines))

    def look(_: str, offset: int) -> Available:
        return Available(max(offset, committed()), max(0, committed() - offset))

    own = f"log/replica/{replica.name}"
    wait = DelayedFetch({key: Asked(first), own: Asked(first)}, look, lambda: None)
    wait.watch(client, timeout=max_wait).settled(max_wait + HTTP_S)
    lines = replica.log.lines[first : min(committed(), first + BATCH)]
    return jsonify(records=[{"offset": first + number, **json.loads(line)} for number, line in enumerate(lines)])


@app.get("/replica")
def fetch() -> tuple[Response, int]:
    """Answer a follower, which has the log up to `offset`, and asks for more."""
    if not hmac.compare_digest(request.headers.get(SECRET, "").encode(), replica.secret.encode()):
        abort(403, "this route is for replicas")
    epoch, name = (request.args.get(what, "") for what in ("epoch", "replica"))
    if replica.partition != f"log/{epoch}":
        return try_again(503)
    first = in_range("offset", request.args.get("offset", -1, int), len(replica.log.lines))
    replica.replicas.acknowledge(replica.partition, name, first)

    def look(_: str, offset: int) -> Available:
        end = len(replica.log.lines)
        return Available(end, end - offset)

    DelayedFetch({replica.partition: Asked(first)}, look, lambda: None).watch(client, timeout=FETCH_S).settled(HTTP_S)
    return Response(b"".join(replica.log.lines[first : first + BATCH])), 200


@app.get("/pid")
def pid() -> Response:
    return jsonify(pid=os.getpid(), replica=replica.name, leads=replica.leads)


application = WSGI(app)
