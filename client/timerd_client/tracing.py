"""Spans of OpenTelemetry: an operation from its registration until it has settled, and each event that is fired.

    from timerd_client import tracing

    tracing.instrument()                   # once, at the start; or instrument(tracer_provider)
    tracing.uninstrument()

Needs `pip install 'timerd[tracing]'`. `instrument()` replaces `register`, `fire` and similar methods. So tracing costs
nothing in a process that does not call `instrument()`. Keys, values and ids do not become attributes, because they may
name users.

Nothing is added to the caller's values and payloads. Each event has a span of its own, "timerd.event", and both
processes compute the ids of that span from the event's origin (events/origin.py). The process that fires makes the
span, and links it with the span of its call. The process that waits links the span of its operation to it.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
)

from timerd_client.aio.purgatory import Purgatory as AioPurgatory
from timerd_client.arguments import seconds_of
from timerd_client.events.origin import Origin, origin_of
from timerd_client.hot import Ledger
from timerd_client.link import batch
from timerd_client.link.operation import Operation
from timerd_client.link.promise import Promise
from timerd_client.link.sender import Sender
from timerd_client.link.surface import Surface
from timerd_client.outcome import Outcome, State
from timerd_client.threaded.purgatory import Purgatory
from timerd_client.types import Key
from timerd_shm.host.version import version

NS: Final = 1_000_000_000
REGISTER: Final = "timerd.operation"  # the span of one operation, or of a batch
FIRE: Final = "timerd.fire"
EVENT: Final = "timerd.event"
LINKS_MAX: Final = 128  # of a span: more are dropped by the SDK
ROWS_MAX: Final = 1_024  # rows of a batch whose events are looked for
FAILED: Final = (State.FAILED, State.UNAVAILABLE)
# Where the methods are defined: threaded and asyncio purgatories inherit the methods of Surface.
FACES: Final = (Purgatory, AioPurgatory)
REGISTRATIONS: Final = (
    (Surface, "register"),
    *((face, name) for face in FACES for name in ("register_wait", "register_many", "register_many_wait")),
)
EVENTS: Final = (
    *((Surface, name) for name in ("fire", "advance", "fail")),
    *((face, name) for face in FACES for name in ("fire_wait", "fire_many")),
)
ISSUES: Final = ((Sender, "issue_locked"), (batch, "issue_events"))  # where commands of events get their numbers

Method: TypeAlias = Any  # of a client: each has other arguments
End: TypeAlias = Callable[[Any], Any]  # takes the result of a call, and returns it
Call: TypeAlias = Callable[[Surface[Any, Any], object, dict[str, Any]], AbstractContextManager[End]]


class Fired:
    """The first events of a call: the origin of each, and when it was fired (CLOCK_REALTIME, ns)."""

    def __init__(self, many: bool) -> None:
        self.many = many
        self.events: list[tuple[Origin, int]] = []

    def add(self, ledger: Ledger, first: int, count: int) -> None:
        """Commands from number `first` on were issued. Called with the link's lock held.

        If there is no arena yet, nothing is added: its incarnation is part of an origin.
        """
        now_ns = time.time_ns()
        for command in range(first, first + min(count, LINKS_MAX - len(self.events))):
            if ledger.arena:
                self.events.append((Origin(ledger.arena, ledger.incarnation, command), now_ns))


_originals: dict[tuple[Any, str], Any] = {}
_fired: ContextVar[Fired | None] = ContextVar("timerd_fired", default=None)  # those of the call that fires now


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Make spans from now on, with this provider (default: the global one). A second call changes the provider.

    Call `instrument()` before other threads use clients. Spans end in the client's thread or loop. So use a span
    processor that does not block, such as BatchSpanProcessor.
    """
    uninstrument()
    spans = Spans(tracer_provider)
    for where, name in (*REGISTRATIONS, *EVENTS, *ISSUES):
        original = _originals[where, name] = vars(where)[name]
        setattr(where, name, spans.replace(original, where, name))


def uninstrument() -> None:
    """Make no more spans: put the original methods back. Spans that have begun still end with their operations."""
    while _originals:
        (where, name), original = _originals.popitem()
        setattr(where, name, original)


class Spans:
    """The spans of calls, made with one provider."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._given = provider
        self._known: TracerProvider | None = None

    @property
    def _tracer(self) -> Tracer:
        """The tracer of the given provider, or of the global one, which may be set later than `instrument()`."""
        provider = self._given or trace.get_tracer_provider()
        if provider is not self._known:
            self._made = trace.get_tracer("timerd", version(), provider)
            self._known = provider
        return self._made

    def replace(self, original: Method, where: Any, name: str) -> Method:
        """The method or function with spans that takes the place of the original."""
        if (where, name) in ISSUES:
            return _issuing(original)
        if (where, name) in REGISTRATIONS:
            return _wrapped(original, self.registration)
        # The hot path of `fire` numbers its command where nobody sees it. The general method does the same.
        return _wrapped(getattr(original, "__wrapped__", original), functools.partial(self.firing, name == "fire_many"))

    @contextmanager
    def registration(self, client: Surface[Any, Any], keys: object, more: dict[str, Any]) -> Iterator[End]:
        """The span of a registration. It ends when the operation or batch has settled."""
        span = self._tracer.start_span(REGISTER, kind=SpanKind.CLIENT, attributes=_attributes(client, keys))
        if (timeout := seconds_of(more.get("timeout"))) is not None:
            span.set_attribute("timerd.timeout_s", float(timeout))
        watermarks = _watermarks(keys)

        def end(made: Any) -> Any:
            if isinstance(made, Promise):
                made._call_aside(functools.partial(_settled, span, client._name, watermarks), wakes=False)
            else:
                span.end()  # an operation of the group: any member may get its outcome
            return made

        try:
            yield end
        except BaseException as error:
            _fail(span, error)
            span.end()
            raise

    @contextmanager
    def firing(self, many: bool, client: Surface[Any, Any], keys: object, more: dict[str, Any]) -> Iterator[End]:
        """The span of a call that fires, linked with its events."""
        span = self._tracer.start_span(FIRE, kind=SpanKind.PRODUCER, attributes=_attributes(client, keys))
        fired = Fired(many)
        token = _fired.set(fired if span.is_recording() else None)

        def end(completed: int | None) -> int | None:
            if completed is not None:
                span.set_attribute("timerd.completed", completed)
            return completed

        try:
            yield end
        except BaseException as error:
            _fail(span, error)
            raise
        finally:
            _fired.reset(token)
            for origin, at_ns in fired.events:
                event = span_of(origin)
                span.add_link(event)
                self._make_event(event, span.get_span_context(), _names(client), at_ns)
            if len(fired.events) == 1:
                span.set_attribute("timerd.event", trace.format_trace_id(event.trace_id))
            span.end()

    def _make_event(self, event: SpanContext, call: SpanContext, names: dict[str, str | int], at_ns: int) -> None:
        """Make the span of an event, if the span of its call is sampled, and the tracer is the SDK's."""
        tracer: Any = self._tracer
        if not call.trace_flags.sampled or not hasattr(tracer, "id_generator"):
            return
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        tracer = copy.copy(tracer)
        tracer.id_generator = Ids(event)
        tracer.sampler = ALWAYS_ON  # the call is sampled. The event's own trace id has to decide nothing.
        tracer.start_span(
            EVENT,
            context=Context(),  # without a parent: the event is a trace of its own
            attributes={**names, "timerd.event": trace.format_trace_id(event.trace_id)},
            links=[Link(call)],
            start_time=at_ns,
        ).end(at_ns)


class Ids:
    """Gives the ids of one span, in the place of the SDK's id generator."""

    def __init__(self, span: SpanContext) -> None:
        self._span = span

    def generate_trace_id(self) -> int:
        """The trace's id."""
        return self._span.trace_id

    def generate_span_id(self) -> int:
        """The span's id."""
        return self._span.span_id

    def is_trace_id_random(self) -> bool:
        """Whether the trace's id may be called random, as W3C Trace Context defines it."""
        return False


def span_of(origin: Origin) -> SpanContext:
    """The span of an event. All processes compute the same ids: a hash of the origin."""
    parts = origin.arena.to_bytes(8, "little"), origin.client, origin.command.to_bytes(8, "little")
    ids = hashlib.blake2b(b"".join(parts), digest_size=24, person=b"timerd.event").digest()
    return SpanContext(
        trace_id=int.from_bytes(ids[:16]),
        span_id=int.from_bytes(ids[16:]),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _issuing(original: Method) -> Method:
    """Sender.issue_locked or batch.issue_events, which also notes the commands that it issues for a call that fires.

    Both run with the link's lock held. So nobody else issues commands between the numbering and the note.
    """

    @functools.wraps(original)
    def issue_locked(self: Sender, command: bytes, purgatory: str | None = None) -> int:
        fired = _fired.get()
        if fired is None or fired.many or fired.events:
            return int(original(self, command, purgatory))
        token = _fired.set(None)  # while the window is full, the caller may run callbacks, which issue other commands
        try:
            number = int(original(self, command, purgatory))
        finally:
            _fired.reset(token)
        fired.add(self._protocol.ledger, number, 1)
        return number

    @functools.wraps(original)
    def issue_events(
        ledger: Ledger, purgatory: int, keys: Any, values: Any, amounts: Any, start: int, rows: int
    ) -> None:
        original(ledger, purgatory, keys, values, amounts, start, rows)
        if (fired := _fired.get()) is not None and fired.many:
            fired.add(ledger, ledger.issued - rows + 1, rows)

    return issue_events if original.__name__ == "issue_events" else issue_locked


def _wrapped(original: Method, call: Call) -> Method:
    """A method that calls the original within `call`, which gets its result."""
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def awaited(self: Any, *args: Any, **more: Any) -> Any:
            with call(self, _keys(args, more), more) as end:
                return end(await original(self, *args, **more))

        return awaited

    @functools.wraps(original)
    def called(self: Any, *args: Any, **more: Any) -> Any:
        with call(self, _keys(args, more), more) as end:
            return end(original(self, *args, **more))

    return called


def _keys(args: tuple[Any, ...], more: dict[str, Any]) -> object:
    """The key or the keys of a call: its first argument, or `key=`, `keys=`."""
    return args[0] if args else more.get("keys", more.get("key"))


def _watermarks(keys: object) -> frozenset[Key] | None:
    """The keys, of an operation or of a batch's first rows, that wait for a watermark. None: it is not known which."""
    if not isinstance(keys, (str, bytes, list, tuple, Mapping)):
        return None  # they are read once, by the call
    rows: Iterable[object] = keys[:ROWS_MAX] if isinstance(keys, (list, tuple)) else (keys,)
    return frozenset(
        key for row in rows if isinstance(row, Mapping) for key, watermark in row.items() if watermark is not None
    )


def _names(client: Surface[Any, Any]) -> dict[str, str | int]:
    """The attributes that all spans have: the instance and the purgatory."""
    return {"timerd.instance": client._lazy.instance, "timerd.purgatory": client._name}


def _attributes(client: Surface[Any, Any], keys: object) -> dict[str, str | int]:
    """The attributes of a call's span: with the number of keys, or of a batch's rows."""
    count = len(keys) if isinstance(keys, (Sequence, dict)) and not isinstance(keys, (str, bytes)) else 1
    return {**_names(client), "timerd.keys": count}


def _settled(span: Span, purgatory: str, watermarks: frozenset[Key] | None, promise: Promise) -> None:
    """The operation or batch of this span has settled. The look at its outcome here does not count as a caller's."""
    try:
        if not span.is_recording():
            return
        if isinstance(promise, Operation):
            outcome = Outcome(promise.keys, promise.payload, promise._settlement)
            _describe(span, outcome)
            if (origin := origin_of(outcome, promise._link, purgatory, watermarks or ())) is not None:
                event = span_of(origin)
                span.set_attribute("timerd.mark", str(outcome.mark))
                span.set_attribute("timerd.event", trace.format_trace_id(event.trace_id))
                span.add_link(event)
        elif isinstance(promise, batch.Batch):
            for origin in _origins(promise, purgatory, watermarks):
                span.add_link(span_of(origin))
    finally:
        span.end()


def _origins(made: batch.Batch, purgatory: str, watermarks: frozenset[Key] | None) -> Iterable[Origin]:
    """The origins of the events that have settled the first rows of a batch, each once."""
    found: dict[int, Origin] = {}
    for row in made[:ROWS_MAX]:
        settlement = made.settlement(row.index)
        if settlement is None or len(found) == LINKS_MAX:
            break
        outcome = Outcome(row.keys, b"", settlement)
        if outcome.mark.sequence in found:
            continue
        # A row with one plain key waits for no watermark. For all others nothing is known if `watermarks` is None.
        suspects = (
            watermarks if watermarks is not None else row.keys if isinstance(made._keys[row.index], tuple) else ()
        )
        if (origin := origin_of(outcome, made._link, purgatory, suspects)) is not None:
            found[outcome.mark.sequence] = origin
    return found.values()


def _describe(span: Span, outcome: Outcome) -> None:
    state = outcome.state.name.lower()
    span.set_attribute("timerd.state", state)
    span.set_attribute("timerd.wait_s", outcome.wait_ns / NS)
    if outcome.state in FAILED:
        span.set_status(Status(StatusCode.ERROR, str(outcome.error or state)))


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
