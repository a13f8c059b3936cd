"""Coverage-guided fuzzing of timerd's readers, with atheris (opt-in: `make fuzz`).

    python tests/support/run.py support.fuzz daemon [OPTIONS]     frames from a client, to the real conductor and core
    python tests/support/run.py support.fuzz client               frames from a daemon, to the client's protocol
    python tests/support/run.py support.fuzz arena                damaged arenas, for a start, a reader and the checker
    python tests/support/run.py support.fuzz journal              damaged segments, for a journal's reader and a start

An input for the daemon or the client is a list of frames, each preceded by its length (2 bytes). The seeds are frames
of every kind. An input for an arena or a journal is a list of changes. A change has a position (4 bytes, as a share of
the bytes in use), a width (1 byte), and the new bytes. An input for a journal has one byte before its changes, which
chooses right or wrong CRCs. An input that fails is written to crash-*; the same command with that file repeats the
failure.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import atheris
from support.fakes import fakedaemon
from support.fakes.fakedaemon import FakeDaemon
from support.fakes.mutations import down
from support.fakes.networks import World
from support.rig.arenas import violations
from support.rig.commands import Key, Register
from support.rig.corpus import UP, small_world
from support.rig.damage import REFUSALS, Change, changed, read_arena, read_journal, with_right_sums
from support.rig.harness import MS, fire
from support.rig.journals import JournaledRig
from support.rig.soundness import MEMORY, live_on
from timerd.clients import ends, messages, sessions
from timerd.conductor import deferred, hello, inbox, queries, subscriptions, turn
from timerd.journal import files, writer
from timerd_client.protocol import protocol
from timerd_shm.check import check
from timerd_shm.declare.errors import ClosedError
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.wire import CommandHeader
from timerd_shm.read import journal_reader, reader, walk
from timerd_shm.read import segment as segments
from timerd_shm.read.segment import JournalError, segment_path

SESSION = offset_of(CommandHeader, "session")


def frames_of(data: bytes) -> Iterator[bytes]:
    """The frames of an input."""
    while len(data) >= 2:
        size = int.from_bytes(data[:2], "little")
        yield data[2 : 2 + size]
        data = data[2 + size :]


def attack_daemon(data: bytes) -> None:
    """Send each frame as a client with a session. At the end, check() must find nothing."""
    world: World = small_world()
    victim, mallory = world.client("victim"), world.client("mallory")
    for frame in frames_of(data):
        if frame[: len(mallory.session)] != bytes(len(mallory.session)):  # frames that begin with zeros stay unchanged
            frame = frame[:SESSION] + mallory.session + frame[SESSION + len(mallory.session) :]
        mallory.put(frame)
        world.turn(MS)
    world.settle()
    assert violations(world.rig.memory) == []
    assert victim.delivered == []


def attack_client(data: bytes) -> None:
    """Send each frame as the daemon. No error may be raised, and the client's state may not grow."""
    world = fakedaemon.World()
    world.exchange()
    world.register()
    for number, frame in enumerate(frames_of(data)):
        world.protocol.receive(frame, world.now, published=number % 2 == 0)
        for waiter in world.protocol.incoming.take_ready():
            waiter.notify()
        world.now += MS
        world.up()
    assert world.protocol.ledger.kept <= 2 and len(world.protocol.ledger.pending) <= 2
    # Nothing else releases the memory of the waiters, and libFuzzer reports memory that grows.
    world.protocol.incoming.fail_all(ClosedError("the end"))


def changes_of(data: bytes) -> Iterator[Change]:
    """The changes of an input."""
    while len(data) > 5:
        width = 1 << data[4] % 4
        yield int.from_bytes(data[:4], "little") / (1 << 32), int.from_bytes(data[5 : 5 + width], "little"), width
        data = data[5 + width :]


def attack_arena(data: bytes) -> None:
    """Read a damaged arena, and run a daemon on it. Reader and daemon may refuse the arena with one of REFUSALS."""
    memory = bytes(changed(MEMORY, changes_of(data)))
    read_arena(memory)
    with contextlib.suppress(*REFUSALS):
        live_on(memory)


@functools.cache
def sound_journal() -> tuple[JournaledRig, bytes]:
    """A journal of one segment with rows of many kinds, and its bytes."""
    rig = JournaledRig(Path(tempfile.mkdtemp(prefix="fuzzed-")))
    client = rig.client()
    for number in range(20):
        key = Key(b"a key that spans rows, because it is longer than one has room for: %d" % number)
        rig.do(client, Register((key, Key(b"k")), timeout_ns=MS, payload=b"p", id=b"%16d" % number), fire(b"k"))
        rig.acknowledge()
    rig.files.close()
    return rig, segment_path(rig.plan.directory, 1).read_bytes()


def attack_journal(data: bytes) -> None:
    """Read a damaged journal, and let a start continue it. The first byte of the input chooses right or wrong CRCs."""
    rig, segment = sound_journal()
    copy = changed(segment, changes_of(data[1:]))
    if data[:1] > b"\x3f":
        copy = with_right_sums(copy)
    path = segment_path(rig.plan.directory, 1)
    for old in path.parent.glob("*.segment"):
        old.unlink()
    path.write_bytes(copy)
    with contextlib.suppress(JournalError):
        read_journal(path.parent)
    again = rig.clone(bytes(rig.memory), path.parent)
    again.tend()
    again.drop_journal()


def watch_coverage(module: ModuleType) -> None:
    """Let libFuzzer see which lines of a module run. (The import hook of atheris does not see an editable install.)"""
    for holder in (module, *(each for each in vars(module).values() if isinstance(each, type))):
        for each in vars(holder).values():
            if isinstance(each, FunctionType) and each.__module__ == module.__name__:
                atheris.instrument_func(each)


def seeds_of(target: str) -> list[bytes]:
    """The inputs from which the fuzzing of a target begins."""
    if target in ("arena", "journal"):
        return [
            bytes([0, *place, width, *b"\xff" * 8]) for place in (b"\0\0\0\1", b"abcd", b"zyxw") for width in range(4)
        ]
    if target == "client":
        frames = list(down(5, FakeDaemon().arena).values())
    else:
        peer = small_world().client()
        frames = [case.frame(peer) for case in UP.values()]
    return [len(frame).to_bytes(2, "little") + frame for frame in frames if len(frame) < 1 << 16]


TARGETS: dict[str, tuple[Callable[[bytes], None], tuple[ModuleType, ...]]] = {
    "daemon": (attack_daemon, (turn, inbox, deferred, hello, queries, subscriptions, messages, sessions, ends)),
    "client": (attack_client, (protocol,)),
    "arena": (attack_arena, (reader, walk, check)),
    "journal": (attack_journal, (journal_reader, segments, files, writer)),
}


def main() -> None:
    """Fuzz one target until something is found, or until a limit among libFuzzer's options is reached."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(__doc__)
    target = sys.argv.pop(1)
    attack, modules = TARGETS[target]
    for module in modules:
        watch_coverage(module)
    logging.disable()  # refusals are expected here
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()  # libFuzzer ends the process in which it runs, so another process must remove the folder
        if child:
            _, status = os.waitpid(child, 0)
            sys.exit(os.waitstatus_to_exitcode(status))
        tempfile.tempdir = folder
        seeds = Path(folder, "seeds")
        seeds.mkdir()
        for number, seed in enumerate(seeds_of(target)):
            Path(seeds, str(number)).write_bytes(seed)
        files = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
        arguments = [sys.argv[0], "-max_len=65536", *sys.argv[1:], *([] if files else [str(seeds)])]
        atheris.Setup(arguments, attack)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
