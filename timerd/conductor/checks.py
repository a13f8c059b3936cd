"""The query "check": how many operations the owners of a key have completed for a CHECK command of the client.

For example, {"id": 7, "query": "check", "command": 31, "end": False} is answered when every owner has looked, by
{"id": 7, "finished": True, "completed": 4}. With "end" the answer comes at once, because the client waits no longer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from timerd.clients.session import Session
from timerd.clients.sessions import Sessions
from timerd.core import Core
from timerd_shm.declare.limits import CHECKS_MAX


class Asked(NamedTuple):
    """A query whose check goes on."""

    session: Session
    number: int
    command: int


class Checks:
    """The queries for checks that have not finished: one for each check."""

    def __init__(self, core: Core, sessions: Sessions) -> None:
        self._core = core
        self._sessions = sessions
        self._asked: dict[tuple[int, int], Asked] = {}  # by slot and command

    def ask(self, session: Session, number: int, command: int, *, end: bool) -> dict[str, Any] | None:
        """The answer; None if the check goes on: finished() will return the answer."""
        key = session.slot, command
        found = self._core.check(session.slot, command, end)
        if found is not None and not found[0] and not end:
            if len(self._asked) >= CHECKS_MAX:
                self._forget_closed()
            self._asked[key] = Asked(session, number, command)
            return None
        self._asked.pop(key, None)
        return _answer(found)

    def finished(self) -> list[tuple[Session, int, dict[str, Any]]]:
        """The queries whose checks have finished since the last call, and their answers."""
        if not self._core.take_finished():
            return []
        self._forget_closed()
        answers = []
        for key, asked in list(self._asked.items()):
            found = self._core.check(asked.session.slot, asked.command, False)
            if found is None or found[0]:
                del self._asked[key]
                answers.append((asked.session, asked.number, _answer(found)))
        return answers

    def _forget_closed(self) -> None:
        """Forget the checks of clients that have ended."""
        for key, asked in list(self._asked.items()):
            if self._sessions.at(asked.session.slot) is not asked.session:
                del self._asked[key]


def _answer(found: tuple[bool, int] | None) -> dict[str, Any]:
    """The answer. An unknown check counts as not finished: an earlier daemon had it, or its command has not come."""
    finished, completed = found or (False, 0)
    return {"finished": finished, "completed": completed}
