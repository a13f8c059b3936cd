class Packets:
    """The packets of a connected socket, which is this object's own. Like Channel, it keeps the GIL in its calls."""

    def __init__(self, descriptor: int) -> None: ...
    @property
    def kind(self) -> int:
        """The kind of the last received packet."""
    def send(self, kind: int, body: bytes) -> bool:
        """Send a packet. False if there is no room. Raises OSError if the other side has ended."""
    def receive(self) -> bytes | None:
        """The body of the next packet; None if there is none.

        Raises OSError if the other side has ended, ValueError for a packet that is too large.
        """
    def close(self) -> None:
        """Close the socket. It must not be used after that."""
