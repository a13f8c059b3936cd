"""Waiting for a few descriptors, with a timeout that may be shorter than a millisecond."""

class Poller:
    """A poller over ppoll(2). One thread at a time may use it."""

    def register(self, descriptor: int) -> None:
        """Watch this descriptor. A poller watches a few at most."""
    def unregister(self, descriptor: int) -> None:
        """Stop watching this descriptor. Raises KeyError if it is not watched."""
    def poll(self, timeout_ns: int) -> list[int]:
        """The descriptors that are readable or have ended. Waits for them; may return none before the timeout."""

def sharpen() -> None:
    """Set the timer slack of the calling thread from 50 us to 1 us (PR_SET_TIMERSLACK): its waits end on time."""
