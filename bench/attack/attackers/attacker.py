"""The context of every attack: the instance, when to end, and a count of the attacker's acts."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pwd
import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import zmq

import timerd as td
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_wire.transports import TRANSPORT_VARIABLE, Transport

PATIENCE_S = 10.0


class Attacker:
    """One hostile process. With the same `seed` it draws the same numbers in each run."""

    def __init__(self, paths: InstancePaths, stop: Any, acts: Any, seed: int = 1) -> None:
        self.paths = paths
        self.random = random.Random(seed)
        self._stop = stop
        self._acts = acts

    def is_on(self) -> bool:
        return not self._stop.is_set()

    def did(self, acts: int = 1) -> None:
        """Count what was done."""
        self._acts.value += acts

    def client(self, **settings: Any) -> td.Client:
        """An ordinary client, which is live."""
        return td.connect(self.paths.instance, timeout=PATIENCE_S, **settings)

    def rest(self, seconds: float = 0.01) -> None:
        """Wait for `seconds`, or until the attack ends."""
        self._stop.wait(seconds)

    @contextlib.contextmanager
    def socket(self, kind: int) -> Iterator[zmq.Socket[bytes]]:
        """A socket of libzmq, without limits of its own."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        made = context.socket(kind)
        made.set(zmq.LINGER, 0)
        made.set(zmq.SNDHWM, 10_000)
        try:
            yield made
        finally:
            context.destroy(linger=0)


Act = Callable[[Attacker], None]


def become_stranger() -> None:
    """Go on as the user `nobody`, but keep the group of this process, which may use the daemon's socket."""
    group, nobody = os.getgid(), pwd.getpwnam("nobody")
    os.setgroups([group])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)


def attack_from(
    act: Act, transport: Transport, paths: InstancePaths, ready: Any, stop: Any, acts: Any, seed: int, as_stranger: bool
) -> None:
    """The attacker's process."""
    if as_stranger:
        become_stranger()
    os.environ[RUNTIME_DIR_VARIABLE] = str(paths.directory)
    os.environ[TRANSPORT_VARIABLE] = transport
    ready.set()
    try:
        act(Attacker(paths, stop, acts, seed))
    except Exception:
        traceback.print_exc()
    os._exit(0)  # as a crash does: without goodbyes


@contextlib.contextmanager
def attacking(
    act: Act, transport: Transport, paths: InstancePaths, seed: int, as_stranger: bool = False
) -> Iterator[Any]:
    """Attack while the block runs. Gives the count of acts. `as_stranger` attacks as another user: this needs root."""
    context = multiprocessing.get_context("spawn")
    ready, stop, acts = context.Event(), context.Event(), context.Value(ctypes.c_longlong, 0, lock=False)
    arguments = (act, transport, paths, ready, stop, acts, seed, as_stranger)
    process = context.Process(target=attack_from, args=arguments, daemon=True)
    process.start()
    try:
        if not ready.wait(3 * PATIENCE_S):
            raise SystemExit(f"overload: the attacker ({act.__name__}) did not begin")
        yield acts
    finally:
        stop.set()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
