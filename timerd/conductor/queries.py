"""Answers queries: a client's questions and settings that are no commands. A query and its answer have the same number.

For example, {"id": 7, "query": "mark"} is answered by {"id": 7, "newest": 1201}. Two kinds are answered later: a
snapshot when the copy is made, and a check when every owner has looked.
"""

from __future__ import annotations

from typing import Any

from timerd.clients.messages import U64_MAX, Query, message_frame, purgatory_name, read_query
from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd.core import Core
from timerd.snapshots import Snapshots
from timerd_shm.declare.errors import NotSupportedError, ResourceLimitError, TimerdError
from timerd_shm.declare.limits import CALLS_HELD_MAX, HANDLED_NAMES_MAX, HELD_QUERY_MAX
from timerd_shm.declare.wire import DownKind

from .checks import Checks
from .outbox import Outbox


class Queries:
    """Answers all kinds of queries."""

    def __init__(self, core: Core, sessions: Sessions, snapshots: Snapshots, outbox: Outbox) -> None:
        self._core = core
        self._checks = Checks(core, sessions)
        self._snapshots = snapshots
        self._outbox = outbox

    def answer(self, session: Session, frame: bytes, now_ns: int) -> None:
        """Answer the query in a frame. A query for a snapshot or a check may be answered later."""
        number: int | None = None
        try:
            query = read_query(frame)
            number = query.number
            if query.query == "snapshot":
                answer = self._snapshots.ask(session, number)
                if answer is not None:
                    self.answer_snapshot(session, number, answer, now_ns)
                return
            if query.query == "check":
                command, end = query.amount("command", U64_MAX), query.flag("end")
                checked = self._checks.ask(session, number, command, end=end)
                if checked is not None:
                    self._send(session, {"id": number, **checked}, now_ns)
                return
            result = {"id": number, **self._result(session, query, now_ns)}
        except TimerdError as error:
            self._outbox.refuse(session.routing, error, now_ns, session, number)
            return
        self._send(session, result, now_ns)

    def _result(self, session: Session, query: Query, now_ns: int) -> dict[str, Any]:
        core = self._core
        match query.query:
            case "purgatory":
                return {"index": core.purgatory(purgatory_name(query.text("name")).encode(), session.slot)}
            case "mark":
                return {"newest": core.newest}
            case "ping":
                return {"now_ns": now_ns}
            case "listen":
                return {"on": core.set_listening(session.slot, query.flag("on"), now_ns)}
            case "handle":
                most, names = query.amount("most", CALLS_HELD_MAX), query.texts("names", HANDLED_NAMES_MAX)
                purgatory = core.purgatory(purgatory_name(query.text("purgatory")).encode(), session.slot)
                back = query.numbers("back", CALLS_HELD_MAX)
                taken = core.set_calls(session.slot, most, purgatory, [n.encode() for n in names], now_ns)
                core.give_back(session.slot, back, now_ns)
                return {"most": taken}
            case "watermark":
                purgatory = core.purgatory(purgatory_name(query.text("purgatory")).encode(), session.slot)
                found = core.watermark(purgatory, query.key("key"))
                return dict(zip(("watermark", "index", "hash"), found or (None, 0, 0), strict=True))
            case "held":
                return {"held": core.held(session.slot, query.numbers("operations", HELD_QUERY_MAX))}
        raise NotSupportedError(
            "this daemon does not know that query; it knows purgatory, mark, ping, listen, handle, held, check, "
            "watermark and snapshot"
        )

    def answer_checks(self, now_ns: int) -> None:
        """Answer the queries for checks that have finished."""
        for session, number, answer in self._checks.finished():
            self._send(session, {"id": number, **answer}, now_ns)

    def answer_snapshot(self, session: Session, number: int, answer: str | ResourceLimitError, now_ns: int) -> None:
        """Answer the query of that number with the copy's path, or with the reason why there is no copy."""
        if isinstance(answer, ResourceLimitError):
            self._outbox.refuse(session.routing, answer, now_ns, session, number)
        else:
            self._send(session, {"id": number, "path": answer}, now_ns)

    def _send(self, session: Session, result: dict[str, Any], now_ns: int) -> None:
        header = self._outbox.header(DownKind.RESULT, now_ns, session)
        self._outbox.send(session.routing, message_frame(header, result))
