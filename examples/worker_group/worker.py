"""A worker of the group: it joins, gets its shards, and does their jobs until a rebalance begins.

    python worker.py NAME [http://127.0.0.1:8000]

Each worker has a NAME of its own. Every request may be repeated, so while the coordinator is away, a worker repeats its
request until an answer comes. After SIGTERM the worker's shards go to the others at once, and after SIGKILL when its
session has ended.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import signal
import sys
import time
from typing import Any
from urllib.request import Request, urlopen

from timerd_client.operations import Errors

JOB_S = float(os.environ.get("WORKER_JOB_S", "0.1"))
PATIENCE_S = float(os.environ.get("WORKER_PATIENCE_S", "120"))  # longer than a rebalance
RETRY_S = 0.2
NO_ANSWER = (OSError, http.client.HTTPException)  # OSError includes answers with a status of 400 or more

logger = logging.getLogger("worker")


def work(text: str) -> str:
    """The work of a job. It may run twice for one job. The jobs of a poll take less time than the session timeout."""
    time.sleep(JOB_S)
    return text.upper()


def divided(shards: int, members: list[str]) -> dict[str, list[int]]:
    """Divide the shards by round robin, so that a member has at most one shard more than any other."""
    return {member: list(range(shards))[number :: len(members)] for number, member in enumerate(members)}


class Worker:
    """A member of the group."""

    def __init__(self, name: str, url: str) -> None:
        self._name, self._url = name, url
        self._generation = 0
        self._shards: list[int] = []

    def run(self) -> None:
        """Do jobs until the process ends."""
        try:
            while True:
                if self.join():
                    while self.ask("heartbeat", generation=self._generation)["error"] == Errors.NONE:
                        self.do_jobs()
        finally:
            with contextlib.suppress(*NO_ANSWER):  # without this request, the session ends by itself
                self.post("leave")

    def join(self) -> bool:
        """Join the group. Returns whether this worker has its shards. If not, another rebalance has begun."""
        joined = self.ask("join")
        if joined["error"]:
            return False
        self._generation, members = joined["generation"], joined["members"]
        leads = members[0] == self._name
        assignment = divided(joined["shards"], members) if leads else {}
        synced = self.ask("sync", generation=self._generation, assignment=assignment)
        if synced["error"]:
            return False
        self._shards = synced["shards"]
        logger.info("%s has the shards %s in generation %d", self._name, self._shards, self._generation)
        return True

    def do_jobs(self) -> None:
        """Do some jobs, in order, until a commit is refused: the shard may be another worker's by now."""
        for job, text in self.ask("poll", generation=self._generation, shards=self._shards)["jobs"]:
            if self.ask("commit", generation=self._generation, job=job, result=work(text))["error"]:
                logger.info("%s is too late with job %d in generation %d", self._name, job, self._generation)
                return

    def ask(self, what: str, **more: Any) -> Any:
        """Repeat a request until the coordinator answers, however long it is away."""
        while True:
            try:
                return self.post(what, **more)
            except NO_ANSWER as error:
                logger.info("%s: no answer to %s: %r", self._name, what, error)
                time.sleep(RETRY_S)

    def post(self, what: str, **more: Any) -> Any:
        """Send a request once. Returns the answer."""
        body = json.dumps({"member": self._name, **more}).encode()
        asked = Request(f"{self._url}/{what}", body, {"Content-Type": "application/json"})
        with urlopen(asked, timeout=PATIENCE_S) as answer:
            return json.load(answer)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    Worker(sys.argv[1], *(sys.argv[2:] or ["http://127.0.0.1:8000"])).run()
