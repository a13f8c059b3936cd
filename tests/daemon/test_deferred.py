"""Deferred frames: whose frame comes next, and from which processes nothing is read meanwhile."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections import Counter, deque

import pytest

from support.fakes.networks import Peer, World, fire
from support.rig.commands import Key, Register
from support.rig.harness import S
from timerd.clients.process import Process
from timerd.clients.session import Session
from timerd.conductor.deferred import BYTES_MAX, FRAME_COST, FRAMES_MAX, LINES_KEPT, Deferred
from timerd_shm.declare.states import Condition
from timerd_shm.declare.wire import DownKind, UpKind

STEP = 1_024  # records that a step of a turn may touch in these tests


def session(slot: int) -> Session:
    return Session(slot, slot, Process(0, 0), 15 * S, 0)


class Holds(dict[int, bool]):
    """Which processes are held, and the memory that each is charged for."""

    def __init__(self) -> None:
        super().__init__()
        self.charged: Counter[int] = Counter()
        self.short: set[int] = set()  # processes that are over their share while memory is short

    def __call__(self, process: int, is_held: bool) -> None:
        assert self.get(process, False) is not is_held, f"process {process} is held or let go twice"
        self[process] = is_held

    def charge(self, process: int, size: int) -> bool:
        self.charged[process] += size
        assert self.charged[process] >= 0
        return process not in self.short


@pytest.fixture
def holds() -> Holds:
    return Holds()


@pytest.fixture
def deferred(holds: Holds) -> Deferred:
    return Deferred(holds, holds.charge)


def served(deferred: Deferred, records: int = 1, *, done: bool = True) -> tuple[Session, bytes]:
    """Serve the next frame, which takes `records`."""
    found = deferred.first()
    deferred.charge(records)
    deferred.pass_on(done=done)
    return found


# the order --------------------------------------------------------------------------------------------------------


def test_clients_of_a_process_take_turns_and_the_frames_of_one_stay_in_order(deferred: Deferred) -> None:
    alice, bob = session(1), session(2)
    for frame in (b"a1", b"a2", b"a3"):
        deferred.add(alice, 7, frame)
    deferred.add(bob, 7, b"b1")
    assert [served(deferred) for _ in range(4)] == [(alice, b"a1"), (bob, b"b1"), (alice, b"a2"), (alice, b"a3")]
    assert not deferred.frames


def test_an_unfinished_frame_stays_first_of_its_client_and_the_next_client_is_served(deferred: Deferred) -> None:
    alice, bob = session(1), session(2)
    deferred.add(alice, 7, b"a1")
    deferred.add(bob, 7, b"b1")
    served(deferred, done=False)
    assert served(deferred) == (bob, b"b1")
    assert deferred.slots() == {1} and deferred.has(alice) and not deferred.has(bob)
    assert served(deferred) == (alice, b"a1")


def test_a_process_pays_for_its_event_before_its_next_frame(deferred: Deferred) -> None:
    hog, light = session(1), session(2)
    deferred.add_begun(hog, 7, b"hog", 0)  # its event is long, and more commands follow in its frame
    deferred.add(light, 8, b"light")
    deferred.charge(100_000)
    before = 0
    while served(deferred, 1_000)[0] is light:
        before += 1
        deferred.add(light, 8, b"light")
    assert 99 <= before <= 200


def test_a_light_process_is_next_after_the_event_under_way_whatever_number_of_others_waits(deferred: Deferred) -> None:
    hogs = {process: session(process) for process in range(1, 9)}
    for process, hog in hogs.items():
        deferred.add(hog, process, b"hog")
        deferred.add(hog, process, b"hog")
    light = session(100)
    for _ in hogs:
        served(deferred, 100_000)  # until each hog has had an event, all processes owe the same
    for process, hog in hogs.items():
        deferred.add(hog, process, b"hog")
    for _ in range(50):
        hog, _ = deferred.first()
        deferred.charge(100_000)
        deferred.pass_on(done=True)
        deferred.add(hog, hog.slot, b"hog")
        deferred.add(light, 100, b"light")  # this frame comes while the event is under way
        deferred.charge(100_000)
        assert served(deferred, 10)[0] is light


def test_a_process_that_caused_a_long_event_waits_for_a_bounded_number_of_events_of_ever_new_processes(
    deferred: Deferred,
) -> None:
    """The process owes 150,000 records, and its next frame is expected to take 300,000.

    Two processes wait all the time. So each event of another process pays off 150,000 records, half of the event.
    """
    honest, other = session(1), session(2)
    deferred.add(honest, 1, b"long")
    deferred.add(other, 2, b"waits")
    served(deferred, 300_000)
    deferred.add(honest, 1, b"its next event")
    for number in range(3, 8):
        if served(deferred, 300_000)[0] is honest:
            break
        deferred.add(session(number), number, b"an event of a new process")
    else:
        pytest.fail("five events of other processes came first")


def test_processes_that_were_light_do_not_keep_another_process_waiting_by_long_events(deferred: Deferred) -> None:
    """Small frames make a process light, so its long event goes first. Then overdue ones go (deferred.py)."""
    honest = session(0)
    prepared = [session(number) for number in range(1, 400)]
    for one in prepared:
        deferred.add(one, one.slot, b"small")
        deferred.add(one, one.slot, b"small")
        served(deferred)
        served(deferred)
    deferred.add(prepared[0], 1, b"long")
    deferred.add(honest, 0, b"long")
    events = 0
    for one in prepared[1:]:
        events += 1
        if served(deferred, 300_000)[0] is honest:
            break
        deferred.add(one, one.slot, b"long")
    assert events <= 4


@pytest.mark.parametrize("records", [1, 50, 1_000])
def test_a_light_process_within_its_share_is_next_while_ever_new_processes_cause_long_events(
    deferred: Deferred, records: int
) -> None:
    light, resident = session(1), session(2)
    deferred.add(light, 1, b"light")
    served(deferred, records)
    for number in range(3, 23):
        deferred.add(session(number), number, b"long")
    for number in range(23, 123):
        if not deferred.has(resident):
            deferred.add(resident, 2, b"long")
        deferred.first()
        deferred.charge(50_000)
        deferred.add(light, 1, b"light")  # it comes while the event is under way
        deferred.charge(50_000)
        deferred.pass_on(done=True)
        assert served(deferred, records)[0] is light
        deferred.add(session(number), number, b"long")


class Dues:
    """A dumb model: while n processes wait, each of them has a right to an n-th of the core."""

    def __init__(self) -> None:
        self.frames: dict[int, deque[int]] = {}  # records of the frames of each process
        self.owed: dict[int, float] = {}  # what each had a right to, less what it got; below 0: it got more

    def add(self, process: int, records: int) -> None:
        self.frames.setdefault(process, deque()).append(records)
        self.owed.setdefault(process, 0)

    def take(self, process: int, records: int) -> None:
        waiting = [each for each, frames in self.frames.items() if frames]
        for each, owed in self.owed.items():
            if self.frames[each]:
                self.owed[each] += records / len(waiting)
            elif owed < 0:  # a process that does not wait pays its debt as well
                self.owed[each] = min(0, owed + records / len(waiting))
        self.owed[process] -= records

    def done(self, process: int) -> None:
        self.frames[process].popleft()
        if not self.frames[process]:  # a process without frames saves nothing up
            self.owed[process] = min(self.owed[process], 0)
        if not any(self.frames.values()):
            self.owed = dict.fromkeys(self.owed, 0)

    def most_owed(self) -> float:
        return max(owed for process, owed in self.owed.items() if self.frames[process])


@pytest.mark.parametrize("at_once", [0, 1, 3, 20], ids="{} new at once".format)
def test_no_process_lags_behind_its_due_by_more_than_three_of_the_largest_events(
    rng: random.Random, at_once: int
) -> None:
    """Resident processes have events of all sizes. Ever new processes have one or two events, the first often small."""
    largest, step = 100_000, 10_000
    holds, dues = Holds(), Dues()
    deferred = Deferred(holds, holds.charge)
    clients: dict[int, Session] = {}
    kinds = [
        rng.choice([[largest], [10], [10] * 20 + [largest], [largest, largest // 2, largest // 10], [largest // 3]])
        for _ in range(rng.choice([2, 3, 5, 10]))
    ]
    prepared: deque[int] = deque()  # new processes that have had one small event

    def add(process: int, records: int) -> None:
        dues.add(process, records)
        deferred.add(clients.setdefault(process, session(process)), process, b"")

    def arrive() -> None:
        for process, sizes in enumerate(kinds):
            if len(dues.frames.get(process, ())) < 3 and rng.random() < 0.5:
                add(process, rng.choice(sizes))
        while sum(bool(frames) for process, frames in dues.frames.items() if process >= len(kinds)) < at_once:
            if prepared and rng.random() < 0.5:
                add(prepared.popleft(), largest)
            else:
                is_small = rng.random() < 0.5
                process = len(kinds) + len(clients)
                add(process, 10 if is_small else largest)
                if is_small:
                    prepared.append(process)

    for _ in range(250):
        arrive()
        if not deferred.frames:
            continue
        client, _ = deferred.first()
        left = dues.frames[client.slot][0]
        while left:
            records = min(left, step)
            left -= records
            deferred.charge(records)
            dues.take(client.slot, records)
            if left and rng.random() < 0.3:
                arrive()
        assert dues.most_owed() <= 3 * largest
        dues.done(client.slot)
        deferred.pass_on(done=True)


def test_a_process_that_waits_for_each_answer_keeps_its_debt_while_others_wait(deferred: Deferred) -> None:
    """The process has no deferred frame when its event is done. It sends the next frame when it has the answer."""
    hog, busy = session(1), session(2)
    for _ in range(300):
        deferred.add(busy, 2, b"busy")
    taken: Counter[Session] = Counter()
    for _ in range(200):
        if not deferred.has(hog):
            deferred.add(hog, 1, b"hog")
        found, _ = deferred.first()
        records = 50_000 if found is hog else 1_000
        taken[found] += records
        deferred.charge(records)
        deferred.pass_on(done=True)
    assert abs(taken[hog] - taken[busy]) <= 51_000, taken


def test_a_process_that_was_away_has_saved_nothing_up(deferred: Deferred) -> None:
    early, late = session(1), session(2)
    deferred.add(late, 2, b"late")
    served_late = 0
    for _ in range(100):
        deferred.add(early, 1, b"early")
    while served_late < 1:
        served_late += served(deferred, 1_000)[0] is late
    for _ in range(50):
        served(deferred, 1_000)
    for _ in range(40):
        deferred.add(late, 2, b"late")
    following = [served(deferred, 1_000)[0] for _ in range(20)]
    assert 5 <= following.count(late) <= 11


def test_random_processes_get_equal_shares_and_each_clients_frames_stay_in_order(rng: random.Random) -> None:
    """The four processes always have frames. So what they have taken differs by two of the largest frames at most."""
    holds = Holds()
    deferred = Deferred(holds, holds.charge)
    clients = [(session(number), number % 4) for number in range(9)]
    sent: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    taken: Counter[int] = Counter()
    most = 5_000
    for _ in range(3_000):
        for client, process in clients:
            while sent[client.slot] - seen[client.slot] < 2:
                sent[client.slot] += 1
                deferred.add(client, process, sent[client.slot].to_bytes(4, "big"))
        client, frame = deferred.first()
        process = client.slot % 4
        seen[client.slot] += 1
        assert frame == seen[client.slot].to_bytes(4, "big")
        records = rng.randrange(1, most)
        taken[process] += records
        deferred.charge(records)
        deferred.pass_on(done=True)
    assert max(taken.values()) - min(taken.values()) <= 2 * most, taken


def test_processes_that_owe_nothing_are_forgotten(deferred: Deferred) -> None:
    busy = session(0)
    deferred.add(busy, 0, b"busy")
    for process in range(1, 4 * LINES_KEPT):
        deferred.add(busy, 0, b"busy")
        deferred.add(session(process), process, b"once")
        served(deferred, 10)
        served(deferred, 10)
    assert len(deferred._lines) <= LINES_KEPT + 2


def test_only_some_of_many_short_lived_processes_that_all_owe_something_are_remembered(
    deferred: Deferred,
) -> None:
    """An earlier version remembered each of them until nothing was deferred any more, which may be never."""
    busy = session(0)
    deferred.add(busy, 0, b"busy")
    for process in range(1, 4 * LINES_KEPT):
        deferred.add_begun(session(process), process, b"long", 1_000_000)
        deferred.pass_on(done=True)
        deferred.add(busy, 0, b"busy")
    assert len(deferred._lines) <= LINES_KEPT + 1


def test_of_processes_without_frames_those_that_owe_the_most_are_remembered(deferred: Deferred) -> None:
    busy, hog, late = session(0), session(1), session(2)
    deferred.add(busy, 0, b"busy")
    deferred.add(hog, 1, b"long")
    while served(deferred, 1_000_000)[0] is not hog:
        deferred.add(busy, 0, b"busy")
    for process in range(3, 3 * LINES_KEPT):
        deferred.add(busy, 0, b"busy")
        deferred.add(session(process), process, b"once")
        served(deferred, 10)
        served(deferred, 10)
    deferred.add(busy, 0, b"busy")
    deferred.add(hog, 1, b"long")
    deferred.add(late, 2, b"late")
    assert hog not in (served(deferred)[0], served(deferred)[0])


# memory -----------------------------------------------------------------------------------------------------------


def test_a_process_is_charged_for_its_frames_until_they_are_done(deferred: Deferred, holds: Holds) -> None:
    deferred.add(session(1), 7, bytes(100))
    deferred.add(session(1), 7, bytes(200))
    assert holds.charged == {7: 300 + 2 * FRAME_COST}
    served(deferred, done=False)
    assert holds.charged == {7: 300 + 2 * FRAME_COST}
    served(deferred)
    served(deferred)
    assert holds.charged == {7: 0}


def test_a_small_frame_costs_no_more_than_it_is_charged(deferred: Deferred, holds: Holds) -> None:
    clients = [session(slot) for slot in range(1_000)]
    tracemalloc.start()
    for client in clients:
        deferred.add(client, client.slot, os.urandom(64))
    cost, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 100_000 < cost < 1.5 * holds.charged.total(), (
        "each frame is the first of its client, and each client the first of its process"
    )


def test_a_process_is_held_while_memory_is_short_and_it_is_over_its_share(deferred: Deferred, holds: Holds) -> None:
    deferred.add(session(2), 8, b"another process's")
    holds.short.add(7)
    deferred.add(session(1), 7, b"first")
    assert holds == {7: True}
    served(deferred)
    served(deferred)
    assert holds == {7: False}


def test_frames_that_are_dropped_are_not_served_and_the_others_are(deferred: Deferred, holds: Holds) -> None:
    alice, bob = session(1), session(2)
    for number in range(FRAMES_MAX):
        deferred.add(alice, 7, b"a%d" % number)
    deferred.add(bob, 8, b"b")
    assert holds == {7: True}
    deferred.drop(7)
    assert holds == {7: False} and holds.charged[7] == 0 and not deferred.has(alice)
    assert served(deferred) == (bob, b"b") and not deferred.frames
    deferred.add(alice, 7, b"again")
    assert served(deferred) == (alice, b"again") and holds.charged[7] == 0


def test_a_frame_that_is_applied_is_not_dropped(deferred: Deferred, holds: Holds) -> None:
    alice = session(1)
    for frame in (b"a1", b"a2", b"a3"):
        deferred.add(alice, 7, frame)
    deferred.first()
    deferred.drop(7)
    deferred.pass_on(done=False)
    assert served(deferred) == (alice, b"a1") and not deferred.frames and holds.charged[7] == 0


def test_frames_that_are_added_dropped_and_done_at_random_are_those_of_a_dumb_model(rng: random.Random) -> None:
    holds = Holds()
    deferred = Deferred(holds, holds.charge)
    clients = [session(number) for number in range(6)]
    queued: dict[Session, list[bytes]] = {client: [] for client in clients}
    for number in range(3_000):
        act = rng.random()
        if act < 0.5:
            client = rng.choice(clients)
            queued[client].append(b"%d" % number)
            deferred.add(client, client.slot % 3, queued[client][-1])
        elif act < 0.55:
            process = rng.randrange(3)
            deferred.drop(process)
            for client in clients:
                if client.slot % 3 == process:
                    queued[client].clear()
        elif deferred.frames:
            client, frame = deferred.first()
            assert frame == queued[client][0]
            deferred.charge(rng.randrange(1_000))
            done = rng.random() < 0.9
            deferred.pass_on(done=done)
            if done:
                queued[client].pop(0)
        assert deferred.frames == sum(map(len, queued.values()))
        assert {client for client in clients if deferred.has(client)} == {c for c in clients if queued[c]}
        sizes = {process: 0 for process in range(3)}
        for client, frames in queued.items():
            sizes[client.slot % 3] += sum(len(frame) + FRAME_COST for frame in frames)
        assert all(holds.charged[process] == size for process, size in sizes.items())


# what is held -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "fit"), [(b"f", FRAMES_MAX), (bytes(1 << 18), BYTES_MAX >> 18)], ids=["frames", "bytes"]
)
def test_a_process_is_held_by_its_frames_or_bytes_until_half_of_them_are_done(
    deferred: Deferred, holds: Holds, frame: bytes, fit: int
) -> None:
    alice = session(1)
    deferred.add(session(2), 8, b"another process's")
    for _ in range(fit - 1):
        deferred.add(alice, 7, frame)
    assert not holds
    deferred.add(alice, 7, frame)
    assert holds == {7: True}
    served(deferred)
    for _ in range(fit // 2):
        assert holds == {7: True}
        served(deferred)
    assert holds == {7: False}


# in a conductor ---------------------------------------------------------------------------------------------------


def hot_world(hogs: int, watchers: int) -> tuple[World, list[Peer], Peer]:
    """Processes that fire on a key whose watchers no fire completes, and a bystander."""
    world = World(STEP, capacity=watchers + 64, quota_operations=watchers + 64, clients=hogs + 4)
    world.until_quiet()
    peers = [world.client(f"hog {number}") for number in range(hogs)]
    light = world.client("light")
    for number, peer in enumerate([*peers, light]):
        world.network.pids[peer.routing] = 100 + number
    watcher = Register((Key(b"hot"),), timeout_ns=600 * S, condition=Condition.TOTAL, total=1 << 40)
    peers[0].mass(watcher, watchers)
    world.settle()
    return world, peers, light


@pytest.mark.parametrize("hogs", [1, 2, 4])
@pytest.mark.parametrize("fires", [1, 20])
def test_a_bystander_waits_for_one_event_under_way_at_most(hogs: int, fires: int) -> None:
    world, peers, light = hot_world(hogs, 8 * STEP)
    events = 0

    def attack() -> None:
        nonlocal events
        events += hogs * fires
        for peer in peers:
            peer.send(*(fire(b"hot") for _ in range(fires)))

    for _ in range(10):
        attack()
    while world.rig.arena.count("events", 0) < hogs + 1:  # until then all processes are alike
        world.turn()
    for _ in range(8):
        attack()
        began = world.rig.arena.count("events", 0)
        number = light.send(fire(b"other"))
        events += 1
        for _ in range(40):
            world.turn()
            if world.core.last_command(light.slot) == number:
                break
        assert world.core.last_command(light.slot) == number
        assert world.rig.arena.count("events", 0) - began <= 2, "one event that was under way, and the bystander's own"
    assert world.rig.arena.count("events", 0) < events, "the attack is over"


def test_a_process_that_fills_its_queue_holds_up_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timerd.conductor.deferred.FRAMES_MAX", 8)
    world, (hog,), light = hot_world(1, 32 * STEP)
    for _ in range(40):
        hog.send(fire(b"hot"))
    for _ in range(16):
        world.turn()
    assert world.network.held == {100} and len(world.network.up) == 40 - 8
    light.say(UpKind.QUERY, {"id": 5, "query": "ping"})
    newcomer = Peer(world, "newcomer")
    newcomer.say(UpKind.HELLO, newcomer.hello())
    for _ in range(8):
        world.turn()
    assert world.network.held == {100}, "the event under way is a long one"
    assert [kind for kind, _ in light.take_answers()] == [DownKind.RESULT]
    assert [kind for kind, _ in newcomer.take_answers()] == [DownKind.WELCOME]
    world.settle()
    assert not world.network.up and not world.network.held
    assert world.rig.arena.count("events", 0) == 40


def test_a_flood_of_frames_that_are_dealt_with_at_once_does_not_keep_the_core_from_deferred_frames() -> None:
    world, (hog, flood), light = hot_world(2, 8 * STEP)
    hog.send(fire(b"hot"))
    world.turn()
    number = light.send(fire(b"other"))
    for _ in range(60):
        for _ in range(20):
            flood.say(UpKind.ACK)
        world.turn()
        if world.core.last_command(light.slot) == number:
            return
    raise AssertionError("the bystander's command was never applied")
