"""The demo: real HTTP long polls over four gunicorn workers, through a restart of the daemon, counted on both sides.

    python examples/demo/run.py [--quick]

It starts a daemon in a runtime directory of its own and a gunicorn application (app.py). It opens hundreds of polls at
once, and answers some with posts. It ends the daemon with SIGTERM while polls wait, and starts it again. It answers
more polls, and lets the rest time out. Then it runs `timerctl load` for a short time. The exit status is 0 only if the
HTTP clients' counts are exactly those of `timerctl stats --json`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from timerctl.instance import open_arena
from timerd_shm.declare.errors import TimerdError
from timerd_shm.host.paths import INSTANCE_DEFAULT, InstancePaths
from timerd_shm.read.statistics import collect, look

HERE = Path(__file__).resolve().parent
WORKERS, THREADS = 4, 150
PATIENT_S = 60.0  # time-out of the polls that will be answered
NO_INSTANCE = 3  # exit status of timerctl when no daemon has ever run
WAIT_S = 30.0  # at most, for anything that should happen soon


class Plan(NamedTuple):
    """How many posts come before, during and after the daemon's absence, and how many polls are never answered."""

    before: int = 100
    during: int = 50
    after: int = 100
    early: int = 100  # polls that time out while the first daemon runs
    late: int = 50  # polls that time out after the restart
    early_s: float = 4.0  # time-out of the early polls
    late_s: float = 14.0
    load: str = "2s"  # how long the load test is
    in_shared_memory: bool = True  # else the arena is a small file: tests that run at once share a small /dev/shm

    @property
    def posts(self) -> int:
        return self.before + self.during + self.after

    @property
    def timeouts(self) -> list[float]:
        """The time-out of each poll, by its number."""
        return [PATIENT_S] * self.posts + [self.early_s] * self.early + [self.late_s] * self.late


QUICK = Plan(
    before=20, during=10, after=20, early=20, late=10, early_s=1, late_s=3, load="500ms", in_shared_memory=False
)


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    worker: int
    body: bytes


class Demo:
    """The processes of the demo and the directory in which everything happens."""

    def __init__(self, plan: Plan) -> None:
        self.in_shared_memory = plan.in_shared_memory
        self.directory = Path(tempfile.mkdtemp(prefix="timerd-demo-"))
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMERD_")}
        # Some versions of gunicorn keep a control socket under HOME.
        self.environment |= {"TIMERD_RUNTIME_DIR": str(self.directory), "HOME": str(self.directory)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.host, self.port = self.listener.getsockname()
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:5.1f} s  {text}", flush=True)

    # processes -------------------------------------------------------------------------------------------------------

    def start(self, name: str, *command: str, **options: Any) -> None:
        """Start a process in a session of its own, so that Ctrl-C reaches only the demo itself."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=self.environment,
                cwd=self.directory,  # gunicorn does not start in a directory that its user may not enter
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **options,
            )

    def stop(self, name: str) -> None:
        """Send SIGTERM to a process, and wait for its end."""
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_daemon(self) -> None:
        arena = [] if self.in_shared_memory else [f"--arena-file={self.directory}/arena", "--capacity=16384"]
        self.start("timerd", "timerd", "--clients=64", *arena)
        self.wait_for("the daemon", lambda: self.look().get("alive"))

    def start_application(self) -> None:
        self.start(
            "gunicorn",
            "gunicorn",
            f"--bind=fd://{self.listener.fileno()}",
            f"--chdir={HERE}",
            f"--workers={WORKERS}",
            "--worker-class=gthread",
            f"--threads={THREADS}",
            f"--worker-connections={THREADS}",  # so a full worker leaves new connections to the other workers
            "--preload",
            "--keep-alive=0",
            "--graceful-timeout=1",
            "app:application",
            pass_fds=[self.listener.fileno()],
        )
        self.wait_for("gunicorn", self.answers)
        self.listener.close()  # only gunicorn has the socket now: if it dies, polls fail instead of waiting for ever

    def close(self) -> bool:
        """End everything. Returns whether nothing is left behind. A second Ctrl-C does not interrupt this."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for name in reversed(list(self.processes)):
            self.stop(name)
        self.listener.close()
        destroyed = self.timerctl("destroy", "--yes")
        if destroyed.returncode not in (0, NO_INSTANCE):
            print(f"the arena is left behind: {destroyed.stderr}", file=sys.stderr)
            return False
        shutil.rmtree(self.directory, ignore_errors=True)
        return True

    def logs(self) -> str:
        """The last lines of each process's log."""
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in sorted(self.directory.glob("*.log"))
        )

    # looking ---------------------------------------------------------------------------------------------------------

    def timerctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "timerctl", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)

    def look(self) -> dict[str, Any]:
        """The document of `timerctl stats --json`, made in this process. Empty while there is no instance."""
        paths = InstancePaths(self.directory, INSTANCE_DEFAULT)
        try:
            with open_arena(paths) as reader:
                return collect(reader.between_turns(lambda: look(reader)), paths)
        except TimerdError:
            return {}

    def registered_and_expired(self) -> tuple[int, int]:
        """The number of polls that were registered up to now, and how many of them have expired."""
        counters = self.look()["purgatories"]["default"]["counters"]
        return counters["registered"], counters["expired"]

    def stats(self) -> dict[str, dict[str, int]]:
        """The counters of each purgatory, from `timerctl stats --json`."""
        shown = json.loads(self.timerctl("stats", "--json").stdout)
        return {name: purgatory["counters"] for name, purgatory in shown["purgatories"].items()}

    def load(self, duration: str) -> dict[str, Any]:
        """The document of a short run of `timerctl load --json`."""
        shown = self.timerctl("load", "--rate=10k", f"--duration={duration}", "--bulk", "--json")
        if not shown.stdout:
            raise SystemExit(f"the load test failed: {shown.stderr}")
        found: dict[str, Any] = json.loads(shown.stdout)
        return found

    def wait_for(self, what: str, happened: Callable[[], object]) -> None:
        """Wait until `happened()` is true. Raises SystemExit when it stays false, or when a process has ended."""
        end = time.monotonic() + WAIT_S
        while not happened():
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            if ended or time.monotonic() > end:
                raise SystemExit(f"{what}: not within {WAIT_S:.0f} s; ended processes: {ended}\n{self.logs()}")
            time.sleep(0.05)

    # HTTP ------------------------------------------------------------------------------------------------------------

    def answers(self) -> bool:
        """Whether the application answers."""
        try:
            return self.request("GET", "/", timeout=1.0).status == 404
        except OSError:
            return False

    def request(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float = PATIENT_S + WAIT_S
    ) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return Answer(response.status, int(response.getheader("X-Worker", "0")), response.read())
        finally:
            connection.close()

    def poll(self, number: int, seconds: float) -> Answer:
        return self.request("GET", f"/poll/{number}?timeout={seconds}")

    def post(self, number: int) -> int:
        """Post to a poll's key. Returns the number of polls that the post has answered."""
        answer = self.request("POST", f"/post/{number}", f"hello, {number}".encode())
        answered: int = json.loads(answer.body)["answered"] if answer.status == 200 else 0
        return answered


class Row(NamedTuple):
    """A line of the summary: a count of the HTTP clients, and timerd's own count."""

    what: str
    counted: int
    stats: int


def play(demo: Demo, plan: Plan, pool: ThreadPoolExecutor) -> list[Row]:
    """Run the whole demo. Returns the summary."""
    demo.start_daemon()
    demo.say(f"daemon {demo.processes['timerd'].pid} is ready in {demo.directory}")
    demo.start_application()
    demo.say(f"gunicorn: {WORKERS} workers, preloaded, at http://{demo.host}:{demo.port}")

    polls = [pool.submit(demo.poll, number, seconds) for number, seconds in enumerate(plan.timeouts)]
    demo.wait_for("registrations", lambda: demo.registered_and_expired()[0] == len(polls))
    demo.say(f"{len(polls)} polls wait; {plan.early} for {plan.early_s:.0f} s, {plan.late} for {plan.late_s:.0f} s")

    numbers = iter(range(plan.posts))
    posts = post(demo, pool, islice(numbers, plan.before))
    finish(posts)
    demo.say(f"{plan.before} posts have answered their polls")
    # `>=`, because on a slow machine some of the late polls have timed out, too.
    demo.wait_for("time-outs", lambda: demo.registered_and_expired()[1] >= plan.early)
    demo.say(f"{plan.early} polls have timed out, as they should")

    demo.stop("timerd")
    demo.say("SIGTERM: the daemon has ended; its arena stays, and the other polls still wait")
    posts += post(demo, pool, islice(numbers, plan.during))
    demo.start_daemon()
    demo.say(f"daemon {demo.processes['timerd'].pid} has attached to the arena; {plan.during} posts came in between")
    posts += post(demo, pool, numbers)
    finish(posts)
    demo.say(f"{plan.during + plan.after} posts have answered their polls")
    answers = [each.result() for each in polls]
    demo.say(f"the last {plan.late} polls have timed out")

    load = demo.load(plan.load)
    demo.say(
        f"load test: {load['registered']} operations from one process, their events from another, at"
        f" {load['reached_rate']:.0f}/s: {load['completed']} completed, {load['expired']} expired"
    )
    return summary(demo, plan, answers, sum(each.result() for each in posts), load)


def post(demo: Demo, pool: ThreadPoolExecutor, numbers: Iterable[int]) -> list[Future[int]]:
    return [pool.submit(demo.post, number) for number in numbers]


def finish(futures: Iterable[Future[int]]) -> None:
    for future in futures:
        future.result()


def summary(demo: Demo, plan: Plan, answers: list[Answer], answered: int, load: dict[str, Any]) -> list[Row]:
    """The counts of both sides, line by line."""
    completed = [answer for answer in answers if answer.status == 200]
    elsewhere = sum(json.loads(answer.body)["worker"] != answer.worker for answer in completed)
    demo.say(f"{elsewhere} of {len(completed)} answered polls were answered by a post at another worker")
    stats = demo.stats()
    http, loaded = stats["default"], stats["load"]
    return [
        Row("polls -> registered", len(answers), http["registered"]),
        Row("200 answered -> completed", len(completed), http["completed"]),
        Row("answered, as the posts say", answered, http["completed"]),
        Row("204 timed out -> expired", sum(answer.status == 204 for answer in answers), http["expired"]),
        Row("answered by design", plan.posts, http["completed"]),
        Row("timed out by design", plan.early + plan.late, http["expired"]),
        *(Row(f"load test: {what}", load[what], loaded[what]) for what in ("registered", "completed", "expired")),
        Row("load test: violations", load["violations"], 0),
        Row("still pending", 0, http["pending"] + loaded["pending"]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="The demo: long polls over gunicorn workers, counted on both sides.")
    parser.add_argument("--quick", action="store_true", help="fewer polls and shorter time-outs, for the tests")
    plan = QUICK if parser.parse_args().quick else Plan()
    demo = Demo(plan)
    os.environ.update(demo.environment)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pool = ThreadPoolExecutor(WORKERS * THREADS)
    try:
        rows = play(demo, plan, pool)
        print(f"\n{demo.timerctl('stats').stdout}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        clean = demo.close()
        pool.shutdown(cancel_futures=True)
    print(f"{'':30}{'counted':>10}{'timerctl':>10}")
    for row in rows:
        print(f"{row.what:30}{row.counted:10}{row.stats:10}{'' if row.counted == row.stats else '   DIFFER'}")
    agree = all(row.counted == row.stats for row in rows)
    print("both sides agree" if agree else "the two sides differ")
    print("next: `make pipeline` takes a journal of such a daemon through Spark (0.5 GB to download, once)")
    return 0 if agree and clean else 1


if __name__ == "__main__":
    sys.exit(main())
