"""The thread of a link's sockets: it receives, sends under load, and sleeps in between. Callbacks run in it."""

from __future__ import annotations

from math import inf

from timerd_client.link.connection import Connection
from timerd_client.link.link import Link
from timerd_client.main_thread import main_has_ended
from timerd_client.waits.condition import Condition
from timerd_client.waits.standing import place_of
from timerd_wire import native
from timerd_wire.poller import Poller, sharpen

from .caller import Callers
from .no_thread import NoThread
from .seat import Seat
from .sender import ThreadedSender

POLL_NS_MAX = 60_000_000_000
HELD_NS = 100_000_000  # if a callback takes this long, the errors of callers that waited in vain name it


class IoThread:
    """Makes a link's passes: see exchange(). No thread can begin after the main thread's end: then waiting callers
    make the passes.
    """

    def __init__(
        self, link: Link, connection: Connection, sender: ThreadedSender, callers: Callers, moved: Condition
    ) -> None:
        self._link = link
        self._connection = connection
        self._sender = sender
        self._callers = callers
        self._moved = moved
        self._poller = Poller()
        self._bell = -1
        self._seat: Seat | None = None
        self._is_ending = False
        self._woke_ns = 0  # when the present pass began
        thread = native.Thread(self._run, "timerd-client")
        self._thread: native.Thread | NoThread = self._no_thread() if main_has_ended() else thread

    def _no_thread(self) -> NoThread:
        return NoThread(self.exchange, self.sleep, self.end_passes)

    def start(self) -> None:
        """Watch the bell, and start the thread if the interpreter still starts threads."""
        self._bell = self._sender.bell.open()
        self.watch(self._bell)
        try:
            self._thread.start()
        except RuntimeError as error:
            if "interpreter shutdown" not in str(error):
                raise
            self._callers.end()
            self._thread = self._no_thread()
        self._link.has_no_thread = isinstance(self._thread, NoThread)

    def is_current(self) -> bool:
        """Whether the caller is a callback, which runs in a pass."""
        return self._thread.is_current()

    def go_on(self, seconds: float) -> None:
        """The process ends: go on for `seconds`, by the caller's passes if there is no thread."""
        if isinstance(self._thread, NoThread):
            self._thread.go_on(seconds)
        else:
            native.sleep(seconds)

    def stop(self, timeout: float | None) -> None:
        """End the thread, which closes the link. Waits `timeout` seconds at most."""
        with self._link.lock:
            if self._is_ending:
                return
            self._link.sealed = self._is_ending = True
            self._sender.bell.ring()
        if not self.is_current() and not self._join(timeout):
            self._link.complain("its thread still runs a callback: it ends after that")

    def _join(self, timeout: float | None) -> bool:
        return self._thread.join(inf if timeout is None else timeout)

    def watch(self, descriptor: int) -> None:
        """Call `Link.readable` when this descriptor is readable."""
        self._poller.register(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching this descriptor: it is about to be closed."""
        self._poller.unregister(descriptor)

    def watch_sockets(self) -> None:
        """Give new sockets a seat, for this thread and the callers."""
        if descriptors := self._connection.sockets.filenos():
            self._seat = Seat(descriptors)
            self.watch(self._seat.fileno())
            if not isinstance(self._thread, NoThread):
                self._callers.begin(self._seat)

    def held_up(self) -> str:
        """For messages: since when, and where, a callback keeps this thread from its work; empty: none does."""
        held_ns = self._link.now_ns() - self._woke_ns
        if held_ns < HELD_NS or not isinstance(self._thread, native.Thread) or self.is_current():
            return ""
        place = place_of(self._thread.ident)
        if not place:
            return ""
        return (
            f"a callback of this client has stood {place} for {held_ns / 1e9:.1f} s, and the client's own thread "
            "receives nothing meanwhile: does it wait for a lock that you hold? Release the lock before you wait"
        )

    def received(self) -> None:
        """Frames were taken: wake callers that wait for the progress of the link."""
        if self._moved.callers:
            with self._link.lock:
                self._moved.notify()

    def _run(self) -> None:
        sharpen()
        try:
            while self.exchange():
                self.sleep(POLL_NS_MAX)
        finally:
            self.end_passes()

    def exchange(self) -> bool:
        """One pass: take all frames, then do and send what is due. False if the thread has to end."""
        link, connection, sender = self._link, self._connection, self._sender
        sockets, answers = connection.sockets, False
        self._woke_ns = link.now_ns()
        while True:
            with link.lock:
                receives = self._callers.begin_pass()
            # If a caller receives instead, this pass still takes answers. ZeroMQ's descriptor shows an answer once (an
            # edge), and a send may use that up.
            connection.receive_some(outcomes=receives, answers=answers or not receives)
            now_ns = link.now_ns()
            if sender.chores:
                with link.lock:
                    sender.do_chores()
            connection.tick(now_ns)
            with link.lock:
                has_subscribed = receives and self._subscribe()
                if receives:
                    self._callers.end_pass()
                if self._is_ending:
                    return False
                if link.is_abandoned():
                    link.sealed = self._is_ending = True
                    return False
                if has_subscribed:
                    continue  # the send may have used up the edge of a frame that came in
                sender.send_due(now_ns, self._woke_ns)
                # This send may have used up an edge, too. So ask the socket whether there is an answer.
                answers = connection.is_cut or sockets.has_answer()
                if not answers and (connection.unsent is None or not sockets.has_room()):
                    sender.rest()
                    if not sender.chores:
                        return True
                    link.idle = False  # a chore came before the rest began, and has rung no bell

    def _subscribe(self) -> bool:
        """Connect for outcomes, if that is due. Returns whether it was due. Called with the lock and the seat."""
        subscriptions = self._link.protocol.session.subscriptions
        if self._is_ending or not subscriptions:
            return False
        self._connection.sockets.subscribe(subscriptions.popleft())
        return True

    def sleep(self, most_ns: int) -> None:
        """Sleep until a descriptor or the clock wakes the thread, `most_ns` at most."""
        link = self._link
        readable = self._poller.poll(min(max(0, self._sender.planned_ns - link.now_ns()), most_ns))
        link.idle = False
        if self._bell in readable:
            self._sender.bell.answer()
        for descriptor in readable:
            link.readable(descriptor)

    def end_passes(self) -> None:
        """After the last pass: close all."""
        self._callers.end()
        self._link.end()
        with self._link.lock:
            self._link.idle = False
            self._moved.notify_all()
        self.close()

    def close(self) -> None:
        """Close the descriptors that are not the connection's."""
        with self._link.lock:
            self._sender.bell.close()
        if self._seat is not None:
            self._seat.close()
