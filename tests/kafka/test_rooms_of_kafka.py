"""Checks of the broker's sources: a request waits for an operation of timerd.

It also waits for work of its own broker (see EXCEPTIONS), and for a client that reads its answer slowly (see AWAITED).
"""

from __future__ import annotations

import ast
from pathlib import Path

from support.real.imports import PACKAGES

SOURCES = PACKAGES["timerd_kafka"]
# Names of functions that let time pass, or wait for another thread, process or socket.
WAITS = {
    *("sleep", "wait_for", "timeout", "timeout_at", "call_later", "call_at"),
    *("Event", "Condition", "Semaphore", "Barrier", "Lock", "RLock", "Queue", "Timer"),
    *("to_thread", "run_in_executor", "acquire", "wait"),
}
# The places of such calls, each with its reason. A request that waits there waits for work of its own broker.
EXCEPTIONS = {
    ("apis/frames.py", "to_thread"): "a large answer is written: for seconds, if it describes thousands of topics",
    ("apis/pauses.py", "sleep"): "for 0 s: others are served while a request makes a large answer",
    ("apis/data/reading.py", "sleep"): "for 0 s: others are served while a request reads many records",
    ("apis/data/reading.py", "to_thread"): "a batch is unpacked, for 0.2 s at most",
    ("broker/broker.py", "Lock"): "one unpacked batch at a time: requests that read records wait for each other",
    ("replicas/follower.py", "sleep"): "a follower's pause after an error: its leader is being started again",
    ("wire/connection.py", "call_later"): "cuts a connection that is closed, but whose client takes no answers",
    ("worker/worker.py", "call_later"): "the tick, which ends waits that a lost daemon does not end",
    ("worker/worker.py", "Event"): "the process waits for SIGTERM",
    ("worker/worker.py", "wait"): "the process waits for SIGTERM",
    ("supervisor/supervisor.py", "sleep"): "the supervisor, which answers no request",
    ("supervisor/daemon.py", "wait"): "the end of the timer daemon",
    ("supervisor/daemon.py", "sleep"): "the end of the timer daemon of a cluster that was killed",
    ("testing/cluster.py", "wait"): "a test waits for its cluster",
    ("testing/cluster.py", "Lock"): "threads of a test ask one after the other",
}
# These modules await only the function that answers a request, a client that reads its answer slowly, and the end of
# an operation of timerd.
AWAITED = {
    "wire/connection.py": {"self._handle(...)", "self._drained"},
    "waits/waits.py": {"wait.future"},
}


def calls_in(path: Path) -> set[str]:
    """The names of called functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and not isinstance(called.value, ast.Constant):
                found.add(called.attr)
            elif isinstance(called, ast.Name):
                found.add(called.id)
    return found


def test_no_request_waits_for_anything_but_an_operation_of_timerd() -> None:
    found = {
        (str(path.relative_to(SOURCES)), name) for path in SOURCES.rglob("*.py") for name in calls_in(path) & WAITS
    }
    assert found == set(EXCEPTIONS), "EXCEPTIONS must list exactly the places that wait"


def awaited_in(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Await):
            value = node.value
            found.add(f"{ast.unparse(value.func)}(...)" if isinstance(value, ast.Call) else ast.unparse(value))
    return found


def test_an_api_awaits_functions_of_its_own_room_that_end_in_an_operation() -> None:
    """`until` awaits an operation. Each other coroutine awaits only what leads to `until`, over any number of steps.

    It may also lead to a pause of 0 s, or to a thread that unpacks or writes: EXCEPTIONS says where these are. This
    test accepts asyncio.shield() without a look at what is shielded.
    """
    for name, allowed in AWAITED.items():
        assert awaited_in(SOURCES / name) == allowed
    leads_there = {"broker.waits.until", "asyncio.sleep", "asyncio.to_thread"}
    functions: dict[str, set[str]] = {}
    for path in [*(SOURCES / "apis").rglob("*.py"), *(SOURCES / "groups").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef):
                functions[node.name] = functions.get(node.name, set()) | {
                    ast.unparse(inner.value.func if isinstance(inner.value, ast.Call) else inner.value)
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Await)
                }
    while more := {
        name
        for name, awaited in functions.items()
        if name not in leads_there and all(leads(one, leads_there) for one in awaited)
    }:
        leads_there |= more
    assert set(functions) - leads_there == set(), "a coroutine awaits something else"


def leads(awaited: str, known: set[str]) -> bool:
    return (
        awaited in known
        or awaited.rpartition(".")[2] in known
        or awaited.endswith("waits.until")
        or awaited == "asyncio.shield"
    )


def test_nothing_else_imports_the_broker() -> None:
    for package, folder in PACKAGES.items():
        if package != "timerd_kafka":
            for path in folder.rglob("*.py"):
                assert "timerd_kafka" not in path.read_text(), path
