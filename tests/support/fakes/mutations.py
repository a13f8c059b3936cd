"""Frames from a daemon, and random changes of frames: tests look for a changed frame that breaks its receiver."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

import msgpack
from support.fakes.fakedaemon import MS
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.wire import PROTOCOL_VERSION, DownKind, OutcomeFlag, OutcomeRecord, ReportHeader, WireAnswer

S = 1_000 * MS


def report(topic: int, incarnation: int, **changed: Any) -> ReportHeader:
    """The header of a report without outcomes and answers."""
    nothing = ReportHeader._make(struct_of(ReportHeader).unpack(bytes(struct_of(ReportHeader).size)))
    return nothing._replace(
        topic=topic, version=PROTOCOL_VERSION, kind=DownKind.REPORT, incarnation=incarnation, outcome_first=1, **changed
    )


def down(topic: int, incarnation: int) -> dict[str, bytes]:
    """Frames from the daemon to the client of `topic`: each kind, and an answer and an error with each error code."""
    pack = struct_of(ReportHeader).pack
    plain = report(topic, incarnation)
    frames = {kind.name.lower(): pack(*plain._replace(kind=kind)) for kind in DownKind}
    outcome = OutcomeRecord._make(struct_of(OutcomeRecord).unpack(bytes(struct_of(OutcomeRecord).size)))._replace(
        command=1, number=1, state=1, settled_key=1, flags=OutcomeFlag.HAS_VALUE, value_length=5
    )
    covering = pack(*plain._replace(outcomes=1, outcome_last=1, outcome_newest=1, applied=1))
    frames["an outcome"] = covering + struct_of(OutcomeRecord).pack(*outcome) + b"hello"
    frames["outcomes after a gap"] = pack(*plain._replace(outcome_first=7, outcome_last=9, outcome_newest=9))
    welcome = {
        "session": b"s" * 16,
        "slot": 0,
        "topic": topic,
        "applied": 0,
        "shared_clock": True,
        "purgatories": {"default": 0},
        "unknown": [1],
        "newest": 0,
        "now_ns": 0,
        "heartbeat_ns": S,
        "lease_ns": 15 * S,
        "daemon_pid": 1,
    }
    frames["a welcome"] = pack(*plain._replace(kind=DownKind.WELCOME)) + bytes(msgpack.packb(welcome))
    frames["a result"] = pack(*plain._replace(kind=DownKind.RESULT)) + bytes(msgpack.packb({"id": 1, "sequence": 5}))
    for code in ErrorCode:
        answer = struct_of(WireAnswer).pack(*WireAnswer(command=1, value=3, code=code, reserved=0))
        header = plain._replace(answers=1, answer_newest=1, applied=1)
        frames[f"an answer {code.name}"] = pack(*header) + answer
        error = {"code": int(code), "message": "what happened", "id": None}
        frames[f"an error {code.name}"] = pack(*plain._replace(kind=DownKind.ERROR)) + bytes(msgpack.packb(error))
    return frames


class Mutation(NamedTuple):
    """One change of a frame. Its position is a share of the frame's length."""

    how: str
    at: float
    data: bytes

    def __call__(self, frame: bytes) -> bytes:
        at = min(int(self.at * (len(frame) + 1)), len(frame))
        if self.how == "set":
            return frame[:at] + self.data + frame[at + len(self.data) :]
        if self.how == "insert":
            return frame[:at] + self.data + frame[at:]
        if self.how == "remove":
            return frame[:at] + frame[at + len(self.data) :]
        if self.how == "cut":
            return frame[:at]
        assert self.how == "again", self.how
        return frame[:at] + frame[at // 2 :]


NUMBERS = [
    0,
    1,
    2,
    64,
    65,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 63,
    (1 << 64) - 1,
]
PIECES = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.builds(lambda number, size: (number & ((1 << 8 * size) - 1)).to_bytes(size, "little"),
              st.sampled_from(NUMBERS), st.sampled_from([1, 2, 4, 8])),
)  # fmt: skip
MUTATIONS = st.lists(
    st.builds(
        Mutation, st.sampled_from(["set", "set", "set", "insert", "remove", "cut", "again"]), st.floats(0, 1), PIECES
    ),
    max_size=4,
)
EXAMPLES = settings(max_examples=int(os.environ.get("TIMERD_EXAMPLES", "150")), deadline=None, database=None)
