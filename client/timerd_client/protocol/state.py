"""The states of the conversation with a daemon. protocol.py leads from one state to the next."""

from __future__ import annotations

from enum import Enum


class LinkState(Enum):
    """The states of a link."""

    CONNECTING = "connecting"  # HELLO is sent until WELCOME comes
    HELLO = "hello"  # subscribed, but no report has come on the subscription yet
    LIVE = "live"
    LOST = "lost"  # no frame for 3 s, or for 2 s after the daemon's end was seen; commands are kept
    CLOSED = "closed"


# Looking up a member in its class takes as long as ten comparisons.
CONNECTING, HELLO, LIVE, LOST, CLOSED = LinkState
