"""Questions to the daemon, and checks of its answers.

A function that sends a question raises ClosedError if the link is closed, TimerdUnavailableError if the daemon is lost.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from timerd_client.protocol.session import NO_SESSION, NUMBER_MAX, Naming
from timerd_client.waiter import Answerable
from timerd_shm.declare.errors import MalformedError
from timerd_shm.host.paths import InstancePaths

from .link import Link
from .promise import Reply


def ask(link: Link, question: dict[str, Any], asker: Answerable) -> None:
    """Send a question; `asker` gets the answer."""
    with link.lock:
        link.connection.refuse_lost()
        link.protocol.query(question, asker, link.now_ns())
        link.wake_if_due(link.protocol.ledger.issued)


def query(link: Link, question: dict[str, Any]) -> Reply:
    """Send a question. Returns the reply."""
    reply = Reply(link)
    ask(link, question, reply)
    return reply


def number_in(answer: Any, name: str, most: int = NUMBER_MAX) -> int:
    """A whole number in the daemon's answer. Raises MalformedError, which shows the answer."""
    found = answer.get(name)
    if type(found) is not int or not 0 <= found <= most:
        raise odd_answer(f"{name} is {found!r:.60}, and not a number from 0 to {most}")
    return found


def copy_of(paths: InstancePaths, answer: Any) -> Path:
    """The copy of the arena that the daemon names: a file of its runtime directory. Raises MalformedError.

    Only the name counts: in a container, the directory may have another path than in the daemon's answer.
    """
    found = answer.get("path")
    name = Path(found).name if isinstance(found, str) else ""
    if not re.fullmatch(re.escape(paths.instance) + r"\.snapshot\.\d{1,20}", name, re.ASCII):
        raise odd_answer(
            f"path is {found!r:.200}, and not that of a copy, {paths.directory}/{paths.instance}.snapshot.NUMBER"
        )
    return paths.directory / name


def odd_answer(what: str) -> MalformedError:
    """The error of an answer that no daemon of this version gives."""
    return MalformedError(
        f"the daemon's answer is odd: {what}; run the same timerd on both sides, or look at the daemon"
    )


def name_purgatory(link: Link, name: str) -> Reply | None:
    """Get the index of a purgatory from the daemon: with the first HELLO, or by a question if there is a session.

    Returns the reply to the question, or None if there is nothing to wait for.
    """
    session = link.protocol.session
    with link.lock:
        if session.secret == NO_SESSION:
            session.name_later(name)
        if name in session.purgatories:
            return None
    return ask_purgatory(link, name)


def ask_purgatory(link: Link, name: str) -> Reply:
    """Ask the daemon for the index of a purgatory. Returns the reply."""
    reply = Reply(link)
    ask(link, {"query": "purgatory", "name": name}, Naming(link.protocol.session, name, reply))
    return reply
