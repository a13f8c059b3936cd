"""Starts the brokers and their timer daemon, and restarts each one that ends.

Brokers are forked from this process, which has loaded all modules that they need, and has one thread. So a new broker
listens after some tens of milliseconds. The supervisor keeps the ports while brokers are restarted.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timerd_kafka.cluster.settings import Settings, SettingsError
from timerd_kafka.supervisor.commands import Commands
from timerd_kafka.supervisor.daemon import TimerDaemon
from timerd_kafka.supervisor.data import Ports, claim
from timerd_kafka.supervisor.door import Door
from timerd_kafka.supervisor.link import Link
from timerd_kafka.wire.ports import kept_port
from timerd_kafka.worker.worker import run as run_worker
from timerd_shm.host.paths import daemon_running
from timerd_shm.host.search import find_instance

AGAIN_S = 0.5  # the pause before the next start of a process that ended at once
SHORT_S = 1.0  # a process that ran for less than this ended at once
DAEMON_POLL_S = 0.01
SERVES_S = 50.0  # the longest wait for the timer daemon at the start: a test waits for 60 s
END_S = 10.0
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("timerd_kafka.supervisor")


class _Worker:
    """The process of one broker, as its supervisor sees it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        self.started = 0.0
        self.ready = False
        self.link: Link | None = None


class Supervisor:
    """One cluster."""

    def __init__(self, settings: Settings, daemon_flags: tuple[str, ...] = ()) -> None:
        """`daemon_flags`: for the timer daemon that the supervisor starts if the settings name no instance."""
        settings.check()
        self._lock = claim(settings)
        self._reserved: list[socket.socket] = []
        port, ports = self._reserve_all(settings)
        self.daemon: TimerDaemon | None = None
        instance, runtime_dir = settings.instance, settings.runtime_dir
        if instance is not None and not daemon_running(find_instance(instance, runtime_dir)):
            raise SettingsError(
                f"instance={instance}: its daemon does not run; start it (`timerd --instance {instance}`)"
            )
        if instance is None:
            flags = ("--ephemeral", *daemon_flags)
            self.daemon = TimerDaemon(f"kafka-{port}", runtime_dir, flags, settings.data / "timerd.log")
            self.daemon.await_its_end()
            instance, runtime_dir = self.daemon.paths.instance, str(self.daemon.paths.directory)
        self.settings = replace(
            settings, port=port, ports=ports, secret=secrets.token_hex(16), instance=instance, runtime_dir=runtime_dir
        )
        self._workers = [_Worker(number) for number in range(settings.workers)]
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._ends = False
        self._announced = False
        self._commands = Commands(self, self.settings)

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"{host}:{self.settings.port}"

    def _reserve_all(self, settings: Settings) -> tuple[int, tuple[int, ...]]:
        """Keep the port of the bootstrap address, and those of the brokers. Raises SettingsError.

        A broker has its port for life: clients that know only this broker come back to it after a restart. A single
        broker has one port for both.
        """
        known = Ports.read(settings.data)
        if known is None or settings.port not in (0, known.bootstrap) or len(known.brokers) != settings.workers:
            following = range(settings.port + 1, settings.port + 1 + settings.workers)
            known = Ports(settings.port, tuple(following) if settings.port else (0,) * settings.workers)
        port = self._reserve(settings.bind, known.bootstrap, "the bootstrap address")
        ports: tuple[int, ...] = (port,)
        if settings.workers > 1:
            names = [f"broker {number}" for number in range(settings.workers)]
            ports = tuple(map(self._reserve, [settings.bind] * settings.workers, known.brokers, names))
        Ports(port, ports).write(settings.data)
        return port, ports

    def _reserve(self, host: str, port: int, of: str) -> int:
        """Keep a port of this machine; port 0 stands for any free port. Returns its number. Raises SettingsError."""
        try:
            kept = kept_port(host, port)
        except OSError as error:
            if port and error.errno == errno.EADDRINUSE:
                raise SettingsError(
                    f"port={port} (of {of}): {error.strerror}; end the program that listens there, or give another "
                    "--port: with --workers N it takes the N ports behind it, too"
                ) from None
            raise SettingsError(f"bind={host} port={port or 'any'}: {error.strerror}") from None
        self._reserved.append(kept)
        return int(kept.getsockname()[1])

    # running ----------------------------------------------------------------------------------------------------------

    def run(self, ready: Callable[[], None], *, commands: bool = False) -> None:
        """Run the cluster until SIGTERM, SIGINT or SIGHUP. `ready` is called once, when all brokers listen.

        With `commands` the cluster takes commands from the standard input, and ends when the input ends.
        """
        self._ready = ready
        wakes, wake = socket.socketpair()
        wakes.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for name in END_SIGNALS:
            signal.signal(name, self._end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(wakes, selectors.EVENT_READ, self._reap)
        if commands:
            self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._commands.hear)
        door = Door(self.settings.data, self._selector, self._commands)
        try:
            if self.daemon:
                self.daemon.start()
                self._await_daemon()
            gc.collect()
            gc.freeze()  # so that the loaded modules stay shared with the brokers
            for worker in self._workers if not self._ends else ():
                self._start(worker)
            while not self._ends:
                self._turn()
        finally:
            self._stop()
            door.close()

    def _turn(self) -> None:
        now = time.monotonic()
        due = [call for when, call in self._due if when <= now]
        self._due = [(when, call) for when, call in self._due if when > now]
        for call in due:
            call()
        timeout = min((when - now for when, _ in self._due), default=None)
        for key, _ in self._selector.select(timeout):
            key.data(key.fileobj)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` once, after `seconds`."""
        self._due.append((time.monotonic() + seconds, call))

    def _end(self, *_: object) -> None:
        self._ends = True

    def end(self) -> None:
        """Let the cluster end in its next turn."""
        self._ends = True

    def pids(self) -> dict[str, int]:
        """The processes that run: brokers by their numbers, and "daemon"."""
        pids = {str(worker.number): worker.pid for worker in self._workers if worker.pid}
        return pids | ({"daemon": self.daemon.pid} if self.daemon and self.daemon.pid else {})

    def ask_broker(self, number: int, command: dict[str, Any]) -> bool:
        """Send a command to a broker, which may still be starting. Returns False if no such broker runs."""
        link = self._workers[number].link if 0 <= number < len(self._workers) else None
        if link is None:
            return False
        link.say(command)
        return True

    # processes --------------------------------------------------------------------------------------------------------

    def _start(self, worker: _Worker) -> None:
        ours, its = socket.socketpair()
        worker.ready, worker.started = False, time.monotonic()
        worker.pid = os.fork()
        if worker.pid == 0:
            ours.close()
            self._become(worker.number, its)
        its.close()
        worker.link = Link(
            ours, self._selector, lambda _, line: self._hear(worker, line), lambda _: self._forget(worker)
        )

    def _become(self, number: int, control: socket.socket) -> None:
        """In the child: close the supervisor's sockets, and run the broker until it ends."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(name, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which ends its brokers
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self._selector.close()
            for kept in self._reserved:
                kept.close()
            os.close(self._lock)
            run_worker(self.settings, number, control, self._commands.rules)
            status = 0
        except BaseException:
            log.exception("broker %d ends", number)
        finally:
            logging.shutdown()
            os._exit(status)

    def _reap(self, wakes: Any) -> None:
        """After a signal: handle the children that have ended."""
        with contextlib.suppress(BlockingIOError):
            wakes.recv(4_096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.daemon and self.daemon.ended(pid):
                self._daemon_ended(status)
            for worker in self._workers:
                if worker.pid == pid:
                    self._worker_ended(worker, status)

    def _worker_ended(self, worker: _Worker, status: int) -> None:
        was_ready = worker.ready
        self._forget(worker)
        if self._ends:
            return
        if not was_ready and not self._announced:
            worker.pid = 0
            raise SettingsError(f"broker {worker.number} does not start: its log is above ({said(status)})")
        log.warning("broker %d (pid %d) has ended (%s): it is started again", worker.number, worker.pid, said(status))
        worker.pid = 0
        short = time.monotonic() - worker.started < SHORT_S
        self.later(AGAIN_S if short else 0.0, lambda: self._start(worker))

    def _daemon_ended(self, status: int) -> None:
        self._tell(ended=True)
        if not self._ends:
            assert self.daemon is not None
            log.warning("the timer daemon has ended (%s): it is started again", said(status))
            short = time.monotonic() - self.daemon.started < SHORT_S
            self.later(AGAIN_S if short else 0.0, self._start_daemon)

    def _start_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.start()
        self._await_daemon_again()

    def _await_daemon_again(self) -> None:
        assert self.daemon is not None
        if self.daemon.serves:
            self._tell(ended=False)
        elif self.daemon.pid:
            self.later(DAEMON_POLL_S, self._await_daemon_again)

    def _await_daemon(self) -> None:
        assert self.daemon is not None
        end = time.monotonic() + SERVES_S
        while not self.daemon.serves and not self._ends:
            if time.monotonic() > end or not self.daemon.runs:
                raise SettingsError(f"the timer daemon does not serve:\n{self.daemon.said}")
            time.sleep(DAEMON_POLL_S)

    def _tell(self, *, ended: bool) -> None:
        for worker in self._workers:
            if worker.link is not None:
                worker.link.say({"do": "daemon", "ended": ended})

    def _stop(self) -> None:
        self._ends = True
        for worker in self._workers:
            if worker.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGTERM)
        end = time.monotonic() + END_S
        for worker in self._workers:
            while worker.pid and time.monotonic() < end:
                try:
                    if os.waitpid(worker.pid, os.WNOHANG)[0]:
                        worker.pid = 0
                except ChildProcessError:
                    worker.pid = 0
                else:
                    time.sleep(DAEMON_POLL_S)
            if worker.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
        if self.daemon:
            self.daemon.stop()
        for name in END_SIGNALS:  # a second signal would interrupt Python's shutdown
            signal.signal(name, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)  # the socket is closed when run() returns

    # messages of brokers ----------------------------------------------------------------------------------------------

    def _hear(self, worker: _Worker, line: bytes) -> None:
        said = json.loads(line)
        if "ready" not in said:
            self._commands.answered(worker.number, said)
            return
        worker.ready = True
        if self.daemon and worker.link is not None:
            worker.link.say({"do": "daemon", "ended": not self.daemon.serves})
        if not self._announced and all(one.ready for one in self._workers):
            self._announced = True
            self._ready()

    def _forget(self, worker: _Worker) -> None:
        if worker.link is not None:
            worker.link.close()
            worker.link, worker.ready = None, False
            self._commands.lost(worker.number)


def said(status: int) -> str:
    """How a process ended: its status, or the name of its signal."""
    code = os.waitstatus_to_exitcode(status)
    return f"status {code}" if code >= 0 else signal.Signals(-code).name
