"""The errors of callers that get no answer: what is wrong with the connection, and what helps."""

from __future__ import annotations

from typing import Protocol as Interface

from timerd_client.discovery.late_sockets import LateSockets
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.session import NO_SESSION
from timerd_client.transport.sockets import Sockets
from timerd_client.waits.scope import noted
from timerd_shm.declare.errors import TimerdUnavailableError
from timerd_shm.host.paths import InstancePaths


class Home(Interface):
    """What an error needs of its link."""

    paths: InstancePaths
    protocol: Protocol
    sockets: Sockets

    def plight(self) -> str:
        """The state of the connection."""


def lost(link: Home) -> TimerdUnavailableError | None:
    """The error of a question that is not asked, because the daemon is lost, or was not found; None = it is asked."""
    sockets = link.sockets
    if isinstance(sockets, LateSockets) and sockets.is_hopeless:
        return noted(TimerdUnavailableError(f"{sockets.trouble()}, or make the client with autostart=True"))
    if not link.protocol.lost:
        return None
    remedy = f"start it ({link.paths.command}), or try again when `client.connected`"
    return noted(TimerdUnavailableError(f"the daemon is lost ({link.plight()}), so it was not asked: {remedy}"))


def unanswered(link: Home, seconds: float) -> TimerdUnavailableError:
    """The error of a question without an answer for so many seconds."""
    if isinstance(link.sockets, LateSockets):
        return noted(TimerdUnavailableError(f"no daemon within {seconds:.3g} s: {link.sockets.trouble()}"))
    remedy = f"start it if it has ended ({link.paths.command}), or try again when `client.connected`"
    if link.protocol.session.secret == NO_SESSION:
        remedy = "it runs, but is stopped, overloaded or about to end; `timerctl stats` shows its turns"
        if link.sockets.trouble():
            remedy = 'it runs, but this client cannot reach it there; transport="zeromq" goes another way'
    what = f"no answer from the daemon within {seconds:.3g} s ({link.plight()})"
    return noted(TimerdUnavailableError(f"{what}: {remedy}"))
