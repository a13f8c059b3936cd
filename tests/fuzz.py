"""Coverage-guided fuzzing of what the daemon and a client accept, with atheris (opt-in: `make fuzz`).

    python tests/fuzz.py daemon [options of libFuzzer]     frames up, against the real conductor and core
    python tests/fuzz.py client                            frames down, against the client's protocol

The seeds are the frames of tests/corpus.py. An input is a list of frames, each behind its length (2 bytes). What is
found is written to crash-*; `python tests/fuzz.py daemon crash-...` repeats it.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import atheris

import fakedaemon
from corpus import UP, down
from fakedaemon import FakeDaemon
from harness import MS, violations
from networks import World
from test_hostile import small_world
from timerd import conductor, messages, sessions
from timerd_client import protocol
from timerd_shm.fields import offset_of
from timerd_shm.wire import CommandHeader

SESSION = offset_of(CommandHeader, "session")


def frames_of(data: bytes) -> Iterator[bytes]:
    """The frames of an input."""
    while len(data) >= 2:
        size = int.from_bytes(data[:2], "little")
        yield data[2 : 2 + size]
        data = data[2 + size :]


def attack_daemon(data: bytes) -> None:
    """Each frame comes from a client that is welcome; the last word is check()'s."""
    world: World = small_world()
    victim, mallory = world.client("victim"), world.client("mallory")
    for frame in frames_of(data):
        if frame[: len(mallory.session)] != bytes(len(mallory.session)):  # else nobody's session
            frame = frame[:SESSION] + mallory.session + frame[SESSION + len(mallory.session) :]
        mallory.put(frame)
        world.turn(MS)
    world.settle()
    assert violations(world.rig.memory) == []
    assert victim.told == []


def attack_client(data: bytes) -> None:
    """Each frame comes from the daemon; nothing may raise, and nothing pile up."""
    world = fakedaemon.World()
    world.exchange()
    world.register()
    for number, frame in enumerate(frames_of(data)):
        world.protocol.receive(frame, world.now, published=number % 2 == 0)
        for waiter in world.protocol.take_ready():
            waiter.tell()
        world.now += MS
        world.up()
    assert world.protocol.kept <= 2 and len(world.protocol.waiting) <= 2


def watch_coverage(module: ModuleType) -> None:
    """Let libFuzzer see which lines of a module run. (Its import hook does not see an editable install.)"""
    for holder in (module, *(each for each in vars(module).values() if isinstance(each, type))):
        for each in vars(holder).values():
            if isinstance(each, FunctionType) and each.__module__ == module.__name__:
                atheris.instrument_func(each)


def seeds_of(target: str) -> list[bytes]:
    """The corpus, in the form of inputs."""
    if target == "client":
        frames = list(down(5, FakeDaemon().arena).values())
    else:
        peer = small_world().client()
        frames = [case.frame(peer) for case in UP.values()]
    return [len(frame).to_bytes(2, "little") + frame for frame in frames if len(frame) < 1 << 16]


def main() -> None:
    """Fuzz one target until something is found, or as long as libFuzzer's options say."""
    if len(sys.argv) < 2 or sys.argv[1] not in ("daemon", "client"):
        sys.exit(__doc__)
    target = sys.argv.pop(1)
    for module in (conductor, messages, sessions, protocol):
        watch_coverage(module)
    logging.disable()  # refusals are what is wanted here
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds_of(target)):
            Path(folder, f"seed-{number}").write_bytes(seed)
        files = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
        arguments = [sys.argv[0], "-max_len=65536", *sys.argv[1:], *([] if files else [folder])]
        atheris.Setup(arguments, attack_client if target == "client" else attack_daemon)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
