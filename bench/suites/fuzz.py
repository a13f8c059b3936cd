"""Mutated frames against the real conductor and core, in memory: no frame ends the daemon or harms another client.

    python bench/suites/fuzz.py [--frames N] [--world N] [--json FILE]

The corpus is in tests/support/rig/corpus.py: a frame of each kind, command and error, and the frames of known attacks.
A *world* is a small arena, whose records, ids and quotas are soon used up, with a victim and attackers. A seed and a
world's number decide every frame of a world. If a world fails, the suite shows the command that repeats it. At the end
of a world `timerctl check` must find nothing, and the victim's operation must be as the victim left it.

`make fuzz` is another, slower fuzzer, which is led by coverage.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import bench.lib.helpers  # noqa: F401

# isort: split
from bench.lib.common import Parser, Row, Suite, amount, run_suite
from bench.lib.parallel import each

FRAMES_PER_WORLD = 12_000
PER_TURN = 12  # frames of each attacker in a turn
ATTACKERS = 2
FAILURES_SHOWN = 20
SAY_EVERY = 1_000  # worlds
NUMBERS = (0, 1, 2, 63, 64, 65, 127, 128, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 63)
TOP = (1 << 64) - 1
HEADER = 56
INCARNATION, SESSION, FIRST_COMMAND = slice(8, 16), slice(16, 32), slice(32, 40)  # of a CommandHeader


@functools.cache
def bodies() -> tuple[tuple[int, bytes], ...]:
    """The corpus: (number of commands, frame)."""
    from support.rig.corpus import ATTACKS, UP, small_world

    peer = small_world().client()
    found = []
    for case in (*UP.values(), *ATTACKS.values()):
        frame = case.frame(peer)
        if len(frame) < 1 << 14:  # only `make fuzz` changes the few larger frames
            found.append((len(case.commands), frame))
    return tuple(found)


def mutated(frame: bytearray, rng: Random) -> None:
    """Change a frame in place. In most cases the change is after its header."""
    for _ in range(1 + (rng.random() < 0.4)):
        size = len(frame)
        at = rng.randrange(HEADER, size) if size > HEADER and rng.random() < 0.85 else rng.randrange(size)
        match rng.randrange(8):
            case 0 | 1:
                frame[at] = rng.randrange(256)
            case 2:
                frame[at] ^= 1 << rng.randrange(8)
            case 3 | 4:
                width = 1 << rng.randrange(4)
                number = (rng.choice(NUMBERS) if rng.random() < 0.8 else TOP) & ((1 << 8 * width) - 1)
                frame[at : at + width] = number.to_bytes(width, "little")
            case 5:
                del frame[at : at + rng.randrange(1, 9)]
            case 6:
                frame[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 7:
                del frame[at : size if rng.random() < 0.5 else at + 1]
        if not frame:
            frame += b"\0"


class Fuzzed:
    """One world."""

    def __init__(self, seed: int, number: int) -> None:
        from support.rig.corpus import small_world

        self.rng = Random(f"{seed}/{number}")
        self.world: Any = small_world()
        self.kinds: Counter[str] = Counter()

    def run(self, frames: int) -> None:
        """Send `frames` frames. Raises AssertionError when something is wrong, and any error of the daemon."""
        from support.rig.arenas import violations
        from support.rig.commands import Key, Register
        from support.rig.harness import MS, S, cancel
        from timerd_shm.declare.errors import SessionGoneError
        from timerd_shm.declare.states import Outcome
        from timerd_shm.declare.wire import UpKind

        rng, world = self.rng, self.world
        victim = world.client("victim")
        victim.send(Register((Key(b"nobody else knows this key"),), timeout_ns=3_600 * S, payload=b"mine"))
        world.settle()
        attackers = [world.client(f"mallory {number}") for number in range(ATTACKERS)]
        network = world.network
        for _ in range(frames // (PER_TURN * ATTACKERS)):
            for at, attacker in enumerate(attackers):
                try:
                    command = world.core.last_command(attacker.slot) + 1
                except SessionGoneError:
                    attackers[at] = attacker = self._another(attacker)
                    command = 1
                self._send(attacker, command)
            world.turn(rng.choice((0, MS, MS, 20 * MS)))
            for attacker in attackers:
                network.answers.pop(attacker.routing, None)
                network.published.pop(attacker.subscriber, None)
        world.settle()
        found = violations(world.rig.memory)
        assert not found, "; ".join(found[:5])
        victim.take_published()
        assert victim.delivered == [], "the victim's operation was settled"
        victim.send(cancel(1))
        world.settle()
        victim.take_published()
        victim.say(UpKind.ASK)
        world.settle()
        victim.take_answers()
        assert [told.state for told in victim.delivered] == [Outcome.CANCELLED], victim.delivered

    def _another(self, attacker: Any) -> Any:
        """A new attacker for one that the daemon has closed, as soon as a slot is free."""
        world = self.world
        for _ in range(100):
            try:
                return world.client("mallory again")
            except (AssertionError, IndexError):
                world.run(1_000_000_000)  # the daemon sweeps the operations of the closed attacker
        raise AssertionError(f"no slot becomes free for an attacker in place of {attacker.name}")

    def _send(self, attacker: Any, command: int) -> None:
        rng, up = self.rng, self.world.network.up
        corpus, incarnation = bodies(), attacker.arena_incarnation.to_bytes(8, "little")
        for _ in range(PER_TURN):
            count, whole = corpus[int(rng.random() * len(corpus))]
            frame = bytearray(whole)
            frame[INCARNATION], frame[SESSION] = incarnation, attacker.session
            frame[FIRST_COMMAND] = command.to_bytes(8, "little")
            command += count
            if rng.random() < 0.9:
                mutated(frame, rng)
            up.append((attacker.routing, bytes(frame)))


def one(number: int, seed: int, frames: int) -> Row:
    """Run one world."""
    logging.disable()  # refusals are expected here
    Fuzzed(seed, number).run(frames)
    return {"failure": "", "frames": frames // (PER_TURN * ATTACKERS) * PER_TURN * ATTACKERS}


def play(suite: Suite) -> None:
    args = suite.args
    count = -(-args.frames // FRAMES_PER_WORLD) if args.worlds is None else args.worlds
    worlds = range(args.world, args.world + count)
    frames, held = 0, 0
    failed: list[tuple[int, str]] = []
    work = partial(one, seed=suite.seed, frames=FRAMES_PER_WORLD)
    try:
        for done, (number, row) in enumerate(each(worlds, work, args.processes), 1):
            if row["failure"]:
                failed.append((number, row["failure"]))
                again = f"--seed {suite.seed} --world {number} --worlds 1"
                suite.say(f"world {number}: {row['failure'][:500]}; again: {again}")
            else:
                held += 1
                frames += row["frames"]
            if done % SAY_EVERY == 0:
                suite.say(f"{frames:,} frames in {done:,} of {len(worlds):,} worlds, {len(failed)} failed")
    finally:
        suite.add(
            "frames",
            frames=frames,
            corpus=len(bodies()),
            worlds=held,
            failed=len(failed),
            rate=frames / max(suite.seconds, 0.001),
            processes=args.processes,
        )
        for number, text in failed[:FAILURES_SHOWN]:
            suite.add("failures", world=number, failure=text)
        suite.check("nothing_falls", not failed, f"{frames:,} frames in {held:,} worlds; {len(failed)} worlds failed")


if __name__ == "__main__":
    parser = Parser("fuzz", __doc__)
    parser.size("--frames", amount(1, 1e12), "100M", "200k", "frames")
    parser.add_argument("--world", type=amount(0, 1 << 40), default=0, metavar="N", help="the first world (0)")
    parser.add_argument("--worlds", type=amount(1, 1 << 40), metavar="N", help="number of worlds, instead of --frames")
    parser.add_argument(
        "--processes",
        type=amount(1, 256),
        default=os.cpu_count() or 1,
        metavar="N",
        help="worlds at a time (one per core)",
    )
    sys.exit(run_suite(parser, play))
