"""Questions to the daemon. Each function raises ClosedError, and TimerdUnavailableError if the daemon is lost."""

from __future__ import annotations

from typing import Any

from timerd_client.protocol.session import NO_SESSION, Naming
from timerd_client.waiter import Answerable

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
