"""Faults that the suite `storm` finds in notes of calls and in records of children. The notes here are made up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.attack.storm_children import Child, id_of, judge_children, read_children
from bench.attack.storm_notes import Note, Notes, judge_notes, read_notes

GOOD = """
a asked innocent/1
a asked killer2/2
b starts innocent/1
b starts killer2/2
c starts killer2/2
c starts innocent/1
c done innocent/1
d fails killer2/2
a asked innocent/3
a cancels innocent/3
a cancelled innocent/3
a asked killer3/4
b2 starts killer3/4
b3 starts killer3/4
e starts innocent/5
e again innocent/5
e starts killer3/4
h fails killer3/4
f done innocent/5
"""
LETTERS = ("killer2/2", "killer3/4")
ENDED = {"b": 139, "c": -11, "b2": -9, "b3": 139, "e": 139}


def faults(text: str, *, letters: Sequence[str] = LETTERS, silent: Sequence[str] = ()) -> list[str]:
    notes = [Note(*line.split()) for line in text.split("\n") if line]
    return judge_notes(notes, (), letters, set(silent), ENDED).faults


def test_calls_that_end_as_they_should_are_no_fault(tmp_path: Path) -> None:
    assert not faults(GOOD)
    for worker, verb, id in (line.split() for line in GOOD.split("\n") if line):
        Notes(tmp_path, worker).add(verb, id)
    assert [" ".join(note) for note in read_notes(tmp_path)] == GOOD.strip().split("\n")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("c done innocent/1\n", "", "innocent/1 was accepted, and has never run to its end"),
        ("d fails", "d starts killer2/2\nd fails", "killer2/2 was started 3 times, its on_failure 1 times"),
        ("d fails killer2/2\n", 3 * "d fails killer2/2\n", "killer2/2 was started 2 times, its on_failure 3 times"),
        ("e again innocent/5\n", "", "killer3/4 is to be alone in worker e: innocent/5 runs"),
        ("h fails", "e starts innocent/3\nh fails", "killer3/4 is to be alone in worker e: innocent/3 runs"),
        (
            "c done",
            "g starts innocent/1\ng starts killer2/2\nc done",
            "innocent/1 is to be alone in worker g: killer2/2 runs",
        ),
        ("a asked killer3/4", "b starts innocent/3", "innocent/3 was started in worker b after it was cancelled"),
        ("a cancelled innocent/3", "a kept innocent/3", "innocent/3 was accepted, and has never run to its end"),
        ("b2 starts killer3/4\n", "", "worker b2 has ended with -9, and no killer had begun in it"),
    ],
)
def test_a_fault_of_a_call_is_found(old: str, new: str, fault: str) -> None:
    assert old in GOOD
    assert fault in faults(GOOD.replace(old, new, 1))


def test_a_dead_letter_too_many_or_too_few_is_found() -> None:
    assert faults(GOOD, letters=LETTERS[:1]) == ["killer3/4 was accepted, and is no dead letter"]
    assert faults(GOOD, letters=(*LETTERS, "killer2/2"))[0].startswith("killer2/2 is 2 dead letters")
    assert faults(GOOD, letters=(*LETTERS, "innocent/1"))[0].startswith("innocent/1 is 1 dead letters")


def test_starts_in_a_silent_worker_are_not_counted() -> None:
    more = GOOD + "s1 starts killer2/2\ns2 starts innocent/3\n"
    assert len(faults(more)) == 2  # killer2/2 has begun too often, innocent/3 after its cancel
    assert not faults(more, silent=["s1", "s2"])


def child(directory: Path, said: str = "", verb: str = "fire") -> Child:
    (directory / "children").mkdir(exist_ok=True)
    (directory / "children" / f"{verb}.fork.1-2").write_text(f"{time.monotonic()}\n{said}")
    (found,) = read_children(directory)
    return found


def test_a_lost_act_of_a_child_is_no_fault_if_the_child_reported_it_while_the_daemon_was_away(tmp_path: Path) -> None:
    found = child(tmp_path)
    assert not judge_children([found], {"child/1-2"}, []).faults
    assert "the journal has no row of its act" in judge_children([found], set(), []).faults[0]
    said = "the process ends, and 1 command to instance 'default' is lost: no timerd\n"
    lost = child(tmp_path, said + "all that follows to 'default' is lost as well\n")
    assert lost.lost and not lost.else_said
    assert not judge_children([lost], set(), [(lost.acted - 1, lost.acted + 1)]).faults
    assert "the daemon was running" in judge_children([lost], set(), [(lost.acted - 2, lost.acted - 1)]).faults[0]
    assert "ValueError" in judge_children([child(tmp_path, "ValueError\n")], {"child/1-2"}, []).faults[0]


def test_a_call_of_a_child_is_judged_by_the_notes(tmp_path: Path) -> None:
    found = child(tmp_path, verb="call_later")
    assert not judge_children([found], set(), []).faults
    id = id_of(found.name)
    assert judge_notes((), [id], (), set(), {}).faults == [f"{id} was accepted, and has never run to its end"]
    assert not judge_notes([Note("a", "starts", id), Note("a", "done", id)], [id], (), set(), {}).faults
