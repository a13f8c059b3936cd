"""The messages between the load test and its processes, pickled over a socket pair. Columns are arrays."""

from __future__ import annotations

from array import array
from enum import Enum
from typing import NamedTuple, TypeAlias

from timerctl.exits import Exit
from timerd_client.workload import Events, Rows, Workload


class Role(Enum):
    """The role of a process."""

    REGISTRAR = "registrar"
    FIRER = "firer"
    PENDING = "pending"  # holds far-future operations


class Task(NamedTuple):
    """The task of a process: the first message that it gets. The process answers Ready, or Failure."""

    role: Role
    index: int
    instance: str
    workload: Workload
    prefix: str  # every key of this run begins with it, so that runs share no key
    bulk: bool
    pending: int  # number of far-future operations


class Ready(NamedTuple):
    """The process has connected and has made its columns."""

    topic: int  # the topic of its client: slot and generation


class Start(NamedTuple):
    """The plan's offsets count from this moment of CLOCK_MONOTONIC."""

    start_ns: int


class Stop(NamedTuple):
    """End now, and answer with what has happened so far."""


class Usage(NamedTuple):
    """CPU time and memory that a process has used for its part."""

    cpu_ns: int
    rss_bytes: int


class Registered(NamedTuple):
    """A registrar's answer: columns in the order of its plan. A 0 means: this did not happen, or was not looked at."""

    rows: Rows
    sent_ns: array[int]  # when register() was called, for each call
    marked_ns: array[int]  # when the operation's mark had been read: events applied from then on count for it
    state: array[int]  # Outcome, as the wire has it
    deliveries: array[int]  # how often its outcome was delivered
    settled_ns: array[int]  # as the outcome has it
    deadline_ns: array[int]  # as the outcome has it
    fired_ns: array[int]  # when fire() was called, as the event's value says; only for operations with a callback
    delivered_ns: array[int]  # when the callback was called; only for operations with a callback
    ended_ns: int  # when the last call had returned
    outcomes: int  # outcome numbers that this client has received: one for each operation that has settled
    own_lateness_ns: array[int]  # see pace.py
    errors: dict[str, int]  # refusals and faults of outcomes, each with its number
    usage: Usage
    failure: str  # why the process ended early; empty if it did not


class Fired(NamedTuple):
    """A firer's answer. Event i of its plan was its command i + 1."""

    events: Events
    sent_ns: array[int]  # when fire() was called, for each call
    own_lateness_ns: array[int]
    usage: Usage
    failure: str


class Failure(NamedTuple):
    """A process cannot go on, and has nothing to show."""

    what: str
    status: Exit


Answer: TypeAlias = Registered | Fired
