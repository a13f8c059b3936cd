"""Spans of OpenTelemetry: an operation from its registration until it has settled, and each event that is fired.

    from timerd_client import tracing

    tracing.instrument()                   # once, at the start; or instrument(tracer_provider)
    tracing.uninstrument()

Needs `pip install 'timerd[tracing]'`. `instrument()` replaces `register`, `fire` and similar methods. So tracing costs
nothing in a process that does not call `instrument()`. The trace context does not travel from the process that fires
to the process that waits: timerd adds nothing to the caller's values and payloads. Keys, values and ids do not become
attributes, because they may name users.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from timerd_client.aio.purgatory import Purgatory as AioPurgatory
from timerd_client.arguments import seconds_of
from timerd_client.link.operation import GroupOperation, Operation
from timerd_client.link.promise import Promise
from timerd_client.link.surface import Surface
from timerd_client.outcome import Outcome, State
from timerd_client.threaded.purgatory import Purgatory
from timerd_shm.host.version import version

NS: Final = 1_000_000_000
REGISTER: Final = "timerd.operation"  # the span of one operation, or of a batch
FIRE: Final = "timerd.fire"
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

_originals: dict[tuple[type[Any], str], Any] = {}


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Make spans from now on, with this provider (default: the global one). A second call changes the provider.

    Call `instrument()` before other threads use clients. Spans end in the client's thread or loop. So use a span
    processor that does not block, such as BatchSpanProcessor.
    """
    uninstrument()
    tracer = trace.get_tracer("timerd", version(), tracer_provider)
    for wrap, methods in ((_registering, REGISTRATIONS), (_firing, EVENTS)):
        for where, name in methods:
            original = vars(where)[name]
            _originals[where, name] = original
            setattr(where, name, wrap(tracer, original))


def uninstrument() -> None:
    """Make no more spans: put the original methods back. Spans that have begun still end with their operations."""
    while _originals:
        (where, name), original = _originals.popitem()
        setattr(where, name, original)


def _registering(tracer: Tracer, original: Any) -> Any:
    """A method such as `register`, with a span that ends when the operation or batch has settled."""

    def begin(client: Surface[Any, Any], keys: object, more: dict[str, Any]) -> Span:
        span = tracer.start_span(REGISTER, kind=SpanKind.CLIENT, attributes=_attributes(client, keys))
        if (timeout := seconds_of(more.get("timeout"))) is not None:
            span.set_attribute("timerd.timeout_s", float(timeout))
        return span

    def end(span: Span, made: Promise | GroupOperation) -> Promise | GroupOperation:
        if isinstance(made, Promise):
            made._call_aside(functools.partial(_settled, span), wakes=False)
        else:
            span.end()  # any member of the group may get the outcome
        return made

    return _wrapped(original, begin, end)


def _firing(tracer: Tracer, original: Any) -> Any:
    """A method such as `fire`, with a span of the call."""

    def begin(client: Surface[Any, Any], keys: object, more: dict[str, Any]) -> Span:
        return tracer.start_span(FIRE, kind=SpanKind.PRODUCER, attributes=_attributes(client, keys))

    def end(span: Span, completed: int | None) -> int | None:
        if completed is not None:
            span.set_attribute("timerd.completed", completed)
        span.end()
        return completed

    return _wrapped(original, begin, end)


def _wrapped(original: Any, begin: Callable[..., Span], end: Callable[[Span, Any], Any]) -> Any:
    """A method that begins a span, calls the original, and passes its result to `end`. An error ends the span."""
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def awaited(self: Any, *args: Any, **more: Any) -> Any:
            span = begin(self, _keys(args, more), more)
            try:
                value = await original(self, *args, **more)
            except BaseException as error:
                _fail(span, error)
                raise
            return end(span, value)

        return awaited

    @functools.wraps(original)
    def called(self: Any, *args: Any, **more: Any) -> Any:
        span = begin(self, _keys(args, more), more)
        try:
            value = original(self, *args, **more)
        except BaseException as error:
            _fail(span, error)
            raise
        return end(span, value)

    return called


def _keys(args: tuple[Any, ...], more: dict[str, Any]) -> object:
    """The key or the keys of a call: its first argument, or `key=`, `keys=`."""
    return args[0] if args else more.get("keys", more.get("key"))


def _attributes(client: Surface[Any, Any], keys: object) -> dict[str, str | int]:
    """The attributes of a span: the instance, the purgatory, and the number of keys, or of a batch's rows."""
    count = len(keys) if isinstance(keys, (Sequence, dict)) and not isinstance(keys, (str, bytes)) else 1
    return {"timerd.instance": client._lazy.instance, "timerd.purgatory": client._name, "timerd.keys": count}


def _settled(span: Span, promise: Promise) -> None:
    """The operation or batch of this span has settled. To look at its outcome here is no look of a caller."""
    if isinstance(promise, Operation):
        _describe(span, Outcome(promise.keys, promise.payload, promise._settlement))
    span.end()


def _describe(span: Span, outcome: Outcome) -> None:
    state = outcome.state.name.lower()
    span.set_attribute("timerd.state", state)
    span.set_attribute("timerd.wait_s", outcome.wait_ns / NS)
    if outcome.state in FAILED:
        span.set_status(Status(StatusCode.ERROR, str(outcome.error or state)))


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.end()
