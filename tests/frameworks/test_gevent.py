"""Programs of gevent: after monkey.patch_all() callers wait in greenlets. The client's own thread is a system thread.

Each program runs in a process of its own, because patching cannot be taken back.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from support.suite.tiers import in_tiers

PATCH = "from gevent import monkey; monkey.patch_all()\nimport gevent, time\nimport timerd as td\n"


def run(program: str, *, patch: str = PATCH) -> str:
    """The output of a program. The program has to end by itself."""
    done = subprocess.run(
        [sys.executable, "-c", patch + program], capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("transport", ["zeromq", "unix"])
def test_greenlets_wait_while_others_go_on(daemon: Daemon, transport: str) -> None:
    said = run(f"""
client = td.connect(transport={transport!r})
ticks = []
def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.01)
ticking = gevent.spawn(tick)
waiting = [gevent.spawn(client.register(f"k/{{n}}", timeout=30).result) for n in range(100)]
while len(ticks) <= 5:
    gevent.sleep(0.01)
assert not any(one.ready() for one in waiting)
assert client.fire_wait("k/0", value=b"first") == 1
for n in range(1, 100):
    client.fire(f"k/{{n}}", value=b"%d" % n)
client.flush()
gevent.joinall(waiting, timeout=30, raise_error=True)
print(waiting[0].value.value.decode(), sum(bool(one.value) for one in waiting))
ticking.kill()
client.close()
""")
    assert said.split() == ["first", "100"]


@pytest.mark.long
def test_a_wait_for_a_predicate_and_a_timeout_of_gevent_are_cooperative(daemon: Daemon) -> None:
    said = run("""
client = td.client()
found = []
waiting = gevent.spawn(client.wait_for, lambda: found, "k", timeout=30)
gevent.sleep(0.05)
found.append("it")
client.fire("k")
print(waiting.get(timeout=30))
operation = client.register("never", timeout=None)
try:
    with gevent.Timeout(0.1):
        operation.result()
except gevent.Timeout:
    print("timeout")
try:
    operation.result(0.05)
except TimeoutError:
    print("not settled")
print(operation.cancel_wait())
""")
    assert said.split("\n")[:4] == ["['it']", "timeout", "not settled", "True"]


GIVE_UP = (
    "with gevent.Timeout(0.01, False): client.register('jobs', timeout=None).result()",
    "with suppress(TimeoutError): client.register('jobs', timeout=None).result(0.01)",
    "gevent.spawn(client.register('jobs', timeout=None).result).kill()",
)
OVER = ("zeromq", "unix", "zeromq"), ("unix", "zeromq", "unix")  # in `make test`, and in `make test-long`


@pytest.mark.long
@pytest.mark.parametrize(
    ("give_up", "transport"),
    in_tiers([(give_up, over) for each in OVER for give_up, over in zip(GIVE_UP, each, strict=True)], len(GIVE_UP)),
)
def test_another_worker_gets_all_ten_jobs_for_greenlets_that_have_given_up(
    daemon: Daemon, give_up: str, transport: str
) -> None:
    said = run(f"""
from contextlib import suppress
client, other = td.connect(transport={transport!r}), td.connect(transport={transport!r})
for _ in range(10):
    {give_up}
client.flush()
waiting = [gevent.spawn(other.register("jobs", timeout=None).result, 30) for _ in range(10)]
gevent.sleep(0)
other.flush()
print(*(other.fire_wait("jobs", value=b"%d" % number, limit=1) for number in range(10)))
gevent.joinall(waiting, timeout=30, raise_error=True)
print(*sorted(one.value.value.decode() for one in waiting))
client.close()
other.close()
""")
    assert said.split() == ["1"] * 10 + [str(number) for number in range(10)]


@pytest.mark.long
def test_callbacks_run_in_greenlets_of_their_own_and_may_wait(daemon: Daemon) -> None:
    said = run(
        """
import threading
client = td.client()
main, done = gevent.getcurrent(), gevent.event.Event()
def callback(operation):
    assert gevent.getcurrent() is not main
    gevent.sleep(0.01)                      # a callback in the client's own thread could not wait
    assert client.fire_wait("nobody") == 0  # nor ask the daemon
    print(operation.outcome().value.decode())
    done.set()
client.register("k", timeout=30).add_done_callback(callback)
client.fire("k", value=b"told")
assert done.wait(30)
operation = client.register("k", timeout=30)
operation.add_done_callback(lambda _: 1 / 0)
client.fire("k")
operation.result(30)
gevent.sleep(0.05)
done_before = client.register("k", timeout=0)
done_before.result(30)
done.clear()
done_before.add_done_callback(lambda _: done.set())
assert done.wait(30)
print("end")
""",
        patch="import gevent.event\n" + PATCH,
    )
    assert said.split() == ["told", "end"]


@pytest.mark.long
def test_waits_for_room_for_a_batch_and_for_the_first_operation_are_cooperative(daemon: Daemon) -> None:
    said = run("""
client = td.client()
for _ in range(3):
    client.fire_many(["k"] * 60_000)        # more than the window has room for: the call waits
client.flush(timeout=30)
batch = client.register_many([f"b/{n}" for n in range(1000)], timeout=30)
getting = gevent.spawn(batch.completed)
client.fire_many([f"b/{n}" for n in range(1000)])
print(getting.get(timeout=30))
first, second = client.register("1", timeout=30), client.register("2", timeout=30)
client.fire("2")
done, pending = td.wait([first, second], timeout=30, until="first")
print(len(done), len(pending))
""")
    assert said.split() == ["1000", "1", "1"]


@pytest.mark.long
def test_waits_of_greenlets_end_with_their_request(daemon: Daemon) -> None:
    """A system thread ends the request, or a signal handler does."""
    said = run("""
import os, signal
from gevent.monkey import get_original
from timerd_client.scope import Scope
client = td.client()
ways = {
    "result": lambda: client.register("k", timeout=30).result(),
    "wait_for": lambda: client.wait_for(lambda: False, "k", timeout=30),
    "first": lambda: td.wait([client.register("k", timeout=30)], until="first"),
    "all": lambda: td.wait([client.register("k", timeout=30)]),
    "batch": lambda: client.register_many(["k"] * 3, timeout=30).outcomes(),
}
def view(scope, wait):
    with scope.entered():
        try:
            wait()
        except td.RequestEnded as error:
            return error.reason
def by_thread(scope):
    get_original("_thread", "start_new_thread")(scope.end, ("disconnect",))
def by_signal(scope):
    signal.signal(signal.SIGTERM, lambda *_: scope.end("drain"))
    get_original("_thread", "start_new_thread")(os.kill, (os.getpid(), signal.SIGTERM))
for end in (by_thread, by_signal):
    for name, wait in ways.items():
        scope = Scope()
        waiting = [gevent.spawn(view, scope, wait) for _ in range(5)]
        gevent.sleep(0.05)
        end(scope)
        print(name, *{one.get(timeout=30) for one in waiting})
print(client.fire_wait("k"))
""")
    names = ("result", "wait_for", "first", "all", "batch")
    assert said.split("\n") == [f"{one} {why}" for why in ("disconnect", "drain") for one in names] + ["0", ""]


@pytest.mark.long
def test_a_client_from_before_the_patch_is_made_anew_in_the_worker(daemon: Daemon, tmp_path: Path) -> None:
    """gunicorn --preload: the module is loaded in the master, and the worker patches after its fork."""
    said = run(
        """
import os
import timerd as td
client = td.Client()
client.fire_wait("master")                  # used in the master, which is not patched
if os.fork() == 0:
    from gevent import monkey; monkey.patch_all()
    import gevent
    waiting = [gevent.spawn(client.register(f"k/{n}", timeout=30).result) for n in range(10)]
    gevent.sleep(0.1)
    for n in range(10): client.fire(f"k/{n}")
    gevent.joinall(waiting, timeout=30, raise_error=True)
    print(sum(bool(one.value) for one in waiting), flush=True)
    os._exit(0)
os.wait()
""",
        patch="",
    )
    assert said.split() == ["10"]


def test_eventlet_is_refused_by_name() -> None:
    said = run(
        """
import sys, types
patcher = types.ModuleType("eventlet.patcher")
patcher.is_monkey_patched = lambda module: module == "thread"
sys.modules["eventlet.patcher"] = patcher   # what eventlet.monkey_patch() leaves
import timerd as td
try:
    td.Client().fire("k")
except td.NotSupportedError as error:
    print(error)
""",
        patch="",
    )
    assert "eventlet" in said and "gevent" in said


@pytest.mark.long
def test_greenlets_follow_subscriptions_while_others_go_on(daemon: Daemon) -> None:
    said = run("""
client = td.client()
found = {n: [] for n in range(50)}
def follow(n):
    with client.subscribe("k", timeout=5) as subscription:
        for item in subscription:
            found[n].append(int(item.value))
            gevent.sleep(0.001 * (n % 3))
            if len(found[n]) == 20:
                return
following = [gevent.spawn(follow, n) for n in found]
gevent.sleep(0.05)
for n in range(20):
    client.fire("k", value=b"%d" % n)
    gevent.sleep(0)
gevent.joinall(following, timeout=30, raise_error=True)
print(all(each == list(range(20)) for each in found.values()))
""")
    assert said.split() == ["True"]


@pytest.mark.long
def test_handlers_of_calls_run_in_greenlets_and_may_wait(daemon: Daemon) -> None:
    said = run("""
client = td.Client(group="web")
calls, met, ran = td.Calls(), [], []

@calls.handler("meet", concurrency=3)
def meet(call):
    met.append(call.payload)
    while len(met) < 3:                     # the three are here at once, in one thread
        gevent.sleep(0.01)
    assert client.fire_wait("nobody") == 0
    ran.append(gevent.getcurrent())

@calls.every("often", seconds=0.05, retries=1, backoff=0.01)
def often(call):
    if call.attempt == 1:
        raise ValueError
    ran.append("often")

client.serve(calls)
for n in range(3):
    client.call_later(meet, 0, b"%d" % n)
while len([one for one in ran if one != "often"]) < 3 or "often" not in ran:
    gevent.sleep(0.01)
print(len({id(one) for one in ran if one != "often"}), gevent.getcurrent() in ran)
client.close()
""")
    assert said.split() == ["3", "False"]
