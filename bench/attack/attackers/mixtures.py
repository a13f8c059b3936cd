"""Mixtures of commands for three processes. The suite `search` draws them, and looks for the worst.

    [["register", 5000, "one", 3], ["fire", 20, "one", 0]],  [["advance", 1, "few", 0]],  [["snapshot", 1, "one", 0]]

Each process plays its *steps* in this order, again and again. A step has a verb, an amount, keys, and a manner. A verb
can be played in several ways, and the manner (modulo their number) chooses one. All commands are those of the public
client.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable
from typing import NamedTuple

import timerd as td

from .attacker import Act, Attacker
from .crowds import play_all

PROCESSES = 3
STEPS_MAX = 5
AMOUNTS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
PART = 5_000  # operations that one register_many() registers
FEW = 8
GROUP = "attackers"
FLUSH_S = 1.0
CONDITIONS = (td.ANY, td.at_least(2), td.total(10**15), td.total(1))
TIMEOUTS = (600.0, 0.0, 0.05, 1.0)
SIZES = (0, 64, 4_096, 60_000)  # bytes of a payload or a value


class Step(NamedTuple):
    """One step of a process."""

    verb: str
    amount: int
    keys: str  # "one" key for all, a "few", or "new" ones
    manner: int


Steps = tuple[Step, ...]
Mixture = tuple[Steps, ...]  # the steps of each process


class Player:
    """A process that plays steps, with one client after another."""

    def __init__(self, attacker: Attacker) -> None:
        self.attacker = attacker
        self.client = attacker.client(name="mixture", group=GROUP)
        self.mark = 0
        self._new = 0

    def key(self, step: Step) -> str:
        """The next key of a step."""
        if step.keys == "one":
            return "hot"
        self._new += 1
        return f"hot/{self._new % FEW}" if step.keys == "few" else f"new/{self._new}"

    def play(self, step: Step) -> None:
        """Play a step. A refusal ends it."""
        with contextlib.suppress(td.TimerdError, OSError):
            VERBS[step.verb](self, step)
            self.attacker.did(step.amount)


def timeout_of(manner: int) -> float:
    return TIMEOUTS[manner % len(TIMEOUTS)]


def body_of(manner: int) -> bytes:
    return bytes(SIZES[manner % len(SIZES)])


# verbs --------------------------------------------------------------------------------------------------------------


def register(player: Player, step: Step) -> None:
    """Register many operations; the manner gives condition and timeout."""
    when, timeout = CONDITIONS[step.manner % len(CONDITIONS)], timeout_of(step.manner // len(CONDITIONS))
    for begin in range(0, step.amount, PART):
        keys = [player.key(step) for _ in range(min(PART, step.amount - begin))]
        player.client.register_many(keys, timeout=timeout, when=when)


def register_wide(player: Player, step: Step) -> None:
    """Register operations that have many keys each."""
    for _ in range(step.amount):
        player.client.register(
            [f"{player.key(step)}/{number}" for number in range(64)], timeout=timeout_of(step.manner)
        )


def register_ids(player: Player, step: Step) -> None:
    """Register operations with ids, or reschedule the operations that have these ids, or cancel them."""
    for number in range(step.amount):
        match step.manner % 3:
            case 0:
                player.client.register(
                    player.key(step), timeout=600, id=f"id/{number}", payload=body_of(step.manner // 3)
                )
            case 1:
                player.client.reschedule(f"id/{number}", 0.01)
            case _:
                player.client.cancel(f"id/{number}")


def wait_for_marks(player: Player, step: Step) -> None:
    """Wait for random watermarks."""
    draw = player.attacker.random.randrange
    for begin in range(0, step.amount, PART):
        count = min(PART, step.amount - begin)
        player.client.register_many(
            [{player.key(step): player.mark + draw(1, 1 << 30)} for _ in range(count)], timeout=600
        )


def advance(player: Player, step: Step) -> None:
    """Raise a watermark by a little, or above every number that an operation waits for."""
    for _ in range(step.amount):
        player.mark += 1 << (30 if step.manner % 2 else 10)
        player.client.advance(player.key(step), player.mark)


def fire(player: Player, step: Step) -> None:
    """Fire for all watchers, for one of them, or with a value."""
    for _ in range(step.amount):
        match step.manner % 3:
            case 0:
                player.client.fire(player.key(step))
            case 1:
                player.client.fire(player.key(step), limit=1)
            case _:
                player.client.fire(player.key(step), value=body_of(step.manner // 3))


def end_key(player: Player, step: Step) -> None:
    """Fail a key, cancel all of its operations, or forget it."""
    client = player.client
    for _ in range(step.amount):
        (client.fail, client.cancel_for_key, client.forget)[step.manner % 3](player.key(step))


def call(player: Player, step: Step) -> None:
    """Schedule calls: soon or late, with a handler or without one."""
    for number in range(step.amount):
        player.client.call_later(f"call/{number % FEW + step.manner % 2 * FEW}", timeout_of(step.manner // 2))


def serve(player: Player, step: Step) -> None:
    """Change the handlers of this member."""
    for _ in range(step.amount):
        calls = td.Calls()
        for number in range(player.attacker.random.randrange(1, FEW)):
            calls.handler(f"call/{number}")(lambda call: None)
        player.client.serve(calls)


def leave_to_group(player: Player, step: Step) -> None:
    """Make outcomes for the group. Nobody takes them."""
    for _ in range(step.amount):
        player.client.register(player.key(step), timeout=timeout_of(step.manner), group=True)


def connect(player: Player, step: Step) -> None:
    """Go on with a new client. The old one says goodbye, or is dropped without a goodbye."""
    for _ in range(min(step.amount, 100)):
        old, orphans = player.client, ("cancel", "keep", "group")[step.manner // 2 % 3]
        player.client = player.attacker.client(name="mixture", group=GROUP, orphans=orphans)
        if step.manner % 2:
            old.close(timeout=FLUSH_S)
        del old
        gc.collect()


def ask(player: Player, step: Step) -> None:
    """Ask for something, and wait for the answer."""
    client = player.client
    for _ in range(step.amount):
        match step.manner % 5:
            case 0:
                client.ping()
            case 1:
                client.watermark(player.key(step))
            case 2:
                client.calls()
            case 3:
                client.check_and_complete(player.key(step))
            case _:
                client.fire_wait(player.key(step))


def snapshot(player: Player, step: Step) -> None:
    """Ask for copies of the arena."""
    for _ in range(min(step.amount, 3)):
        player.client.snapshot()


def purgatory(player: Player, step: Step) -> None:
    """Use a purgatory with a new name."""
    for _ in range(min(step.amount, 100)):
        player._new += 1
        player.client.purgatory(f"p{player._new}").fire(player.key(step))


def flush(player: Player, step: Step) -> None:
    """Wait until all commands are applied."""
    player.client.flush(timeout=FLUSH_S)


def rest(player: Player, step: Step) -> None:
    """Do nothing for a while."""
    player.attacker.rest(step.amount / 10_000)


VERBS: dict[str, Callable[[Player, Step], None]] = {
    verb.__name__: verb
    for verb in (
        register,
        register_wide,
        register_ids,
        wait_for_marks,
        advance,
        fire,
        end_key,
        call,
        serve,
        leave_to_group,
        connect,
        ask,
        snapshot,
        purgatory,
        flush,
        rest,
    )
}
KEYS = ("one", "few", "new")


class Mix:
    """An act: three processes play a mixture. `spawn` can hand it to the attacker's process."""

    __name__ = "a mixture"

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture

    def __call__(self, attacker: Attacker) -> None:
        play_all(attacker, [_again_and_again(steps) for steps in self.mixture])


def _again_and_again(steps: Steps) -> Act:
    def part(attacker: Attacker) -> None:
        player = Player(attacker)
        while attacker.is_on():
            for step in steps:
                player.play(step)

    return part


# drawn --------------------------------------------------------------------------------------------------------------


def drawn(rng: random.Random) -> Mixture:
    """A new mixture."""
    return tuple(tuple(step_drawn(rng) for _ in range(rng.randrange(1, STEPS_MAX + 1))) for _ in range(PROCESSES))


def step_drawn(rng: random.Random) -> Step:
    return Step(rng.choice(list(VERBS)), rng.choice(AMOUNTS), rng.choice(KEYS), rng.randrange(64))


def changed(mixture: Mixture, rng: random.Random) -> Mixture:
    """A mixture like this one: one step is added, left out, replaced, copied, or has one of its fields changed."""
    parts = [list(steps) for steps in mixture]
    steps = rng.choice(parts)
    at = rng.randrange(len(steps))
    match rng.randrange(5):
        case 0 if len(steps) < STEPS_MAX:
            steps.insert(at, step_drawn(rng))
        case 1 if len(steps) > 1:
            del steps[at]
        case 2:
            steps[at] = step_drawn(rng)
        case 3:
            other = rng.choice(parts)
            if len(other) < STEPS_MAX:
                other.append(steps[at])
        case _:
            new = step_drawn(rng)
            field = rng.choice(Step._fields[1:])
            steps[at] = steps[at]._replace(**{field: getattr(new, field)})
    return tuple(tuple(steps) for steps in parts)


def from_rows(rows: list[list[list[object]]]) -> Mixture:
    """The mixture of these rows, as JSON has them."""
    return tuple(tuple(Step(*row) for row in steps) for steps in rows)  # type: ignore[arg-type]
