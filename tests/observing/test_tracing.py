"""The OpenTelemetry hook: a span for each operation or batch until it settles, and for each call that makes events."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from timerd.testing import Manual
from timerd_client import aio, tracing
from timerd_client.link.surface import Surface
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.wire import RegisterCommand

Ids = tuple[int, int]  # of a trace and of a span


def ids_of(span: SpanContext | None) -> Ids:
    assert span is not None
    return span.trace_id, span.span_id


class Traced:
    """Tracing into memory."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self, *names: str) -> list[ReadableSpan]:
        """The spans of these names that have ended; without names, those of calls."""
        wanted = names or ("timerd.operation", "timerd.fire")
        return [span for span in self._exporter.get_finished_spans() if span.name in wanted]

    def events(self) -> list[Ids]:
        """The ids of the events' spans."""
        return [ids_of(span.context) for span in self.spans("timerd.event")]

    def links(self) -> list[Ids]:
        """The links of the newest operation or call."""
        return [ids_of(link.context) for link in self.spans()[-1].links]

    def one(self) -> ReadableSpan:
        (span,) = self.spans()
        return span

    def attributes(self) -> list[dict[str, Any]]:
        return [dict(span.attributes or {}) for span in self.spans()]


@pytest.fixture
def traced() -> Iterator[Traced]:
    """Tracing is on."""
    made = Traced()
    tracing.instrument(made.provider)
    yield made
    tracing.uninstrument()


@pytest.fixture
def client(manual: Manual) -> Iterator[td.Client]:
    with td.connect() as made:
        yield made


def test_an_operation_is_a_span_until_it_has_settled(manual: Manual, traced: Traced, client: td.Client) -> None:
    waits = client.purgatory("inbox").register(["a", "b"], timeout=30)
    assert not traced.spans()
    manual.advance(30)
    assert waits.done()
    assert traced.attributes() == [
        {
            "timerd.instance": "default",
            "timerd.purgatory": "inbox",
            "timerd.keys": 2,
            "timerd.timeout_s": 30.0,
            "timerd.state": "expired",
            "timerd.wait_s": 30.0,
        }
    ]
    span = traced.one()
    assert (span.name, span.kind, span.status.status_code) == ("timerd.operation", SpanKind.CLIENT, StatusCode.UNSET)


def test_an_operations_span_is_a_child_of_the_span_in_which_it_was_registered(
    manual: Manual, traced: Traced, client: td.Client
) -> None:
    with trace.get_tracer("app", tracer_provider=traced.provider).start_as_current_span("view") as view:
        client.register("a", timeout=1)
    manual.advance(1)
    parent = traced.spans()[-1].parent
    assert parent is not None and parent.span_id == view.get_span_context().span_id


def test_an_event_is_a_span(traced: Traced, client: td.Client) -> None:
    client.fire("a")
    client.fire_many(["a", "b", "c"])
    client.advance(key="p0", watermark=7)
    assert client.fire_wait("a") == 0
    assert [each["timerd.keys"] for each in traced.attributes()] == [1, 3, 1, 1]
    assert traced.attributes()[-1]["timerd.completed"] == 0
    assert {(span.name, span.kind) for span in traced.spans()} == {("timerd.fire", SpanKind.PRODUCER)}
    assert [len(span.links) for span in traced.spans()] == [1, 3, 1, 1]
    assert {span.kind for span in traced.spans("timerd.event")} == {SpanKind.INTERNAL}
    assert all(span.start_time == span.end_time and span.parent is None for span in traced.spans("timerd.event"))


def test_a_failed_operation_and_a_wrong_argument_are_errors(traced: Traced, client: td.Client) -> None:
    waits = client.register("a", timeout=None)
    client.fail("a", code=7)
    assert waits.result().state is td.State.FAILED
    failed = traced.spans()[-1]
    assert (failed.name, failed.status.status_code) == ("timerd.operation", StatusCode.ERROR)
    with pytest.raises(td.InvalidKeyError):
        client.register("", timeout=1)
    wrong = traced.spans()[-1]
    assert wrong.status.status_code is StatusCode.ERROR
    assert [event.name for event in wrong.events] == ["exception"]


def test_a_batch_is_one_span(manual: Manual, traced: Traced, client: td.Client) -> None:
    client.register_many(["a", "b", "c"], timeout=1)
    manual.advance(1)
    assert [each["timerd.keys"] for each in traced.attributes()] == [3]


def test_a_batch_may_have_a_timeout_for_each_row(manual: Manual, traced: Traced, client: td.Client) -> None:
    client.register_many(["a", "b"], timeout=[1, 2])
    manual.advance(2)
    assert "timerd.timeout_s" not in traced.attributes()[0]


def test_the_span_of_a_groups_operation_ends_with_its_call(manual: Manual, traced: Traced) -> None:
    with td.connect(group="g") as client:
        client.register("a", timeout=timedelta(seconds=1), group=True)
        assert [each["timerd.timeout_s"] for each in traced.attributes()] == [1.0]


def test_a_span_is_no_look_at_a_limited_event(manual: Manual, traced: Traced, client: td.Client) -> None:
    """So the event goes to another operation when nobody has looked."""
    first = client.register("a", timeout=None)
    client.fire("a", limit=1)
    second = client.register("a", timeout=None)
    client.flush()
    assert traced.spans()[-1].name == "timerd.operation"
    del first
    manual.advance(1)
    assert second.result().redelivered


def test_operations_that_are_pending_at_the_end_of_a_client_end_with_it(manual: Manual, traced: Traced) -> None:
    with td.connect() as client:
        client.register_wait("a", timeout=None)
    assert traced.attributes()[0]["timerd.state"] == "failed"


def test_asyncio_clients_are_traced_alike(manual: Manual, traced: Traced) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            operation = await client.register_wait("a", timeout=30)
            assert await client.fire_wait("a") == 1
            await operation
            await client.register("b", timeout=2)

    manual.run(main())
    found = {(span.name, (span.attributes or {}).get("timerd.state")) for span in traced.spans()}
    assert found == {("timerd.fire", None), ("timerd.operation", "completed"), ("timerd.operation", "expired")}


def test_the_methods_are_the_same_as_before_when_tracing_is_off(client: td.Client) -> None:
    replaced = (*tracing.REGISTRATIONS, *tracing.EVENTS, *tracing.ISSUES)
    before = {name: vars(where)[name] for where, name in replaced}
    traced = Traced()
    tracing.instrument(traced.provider)
    tracing.instrument(traced.provider)
    assert vars(Surface)["register"] is not before["register"]
    tracing.uninstrument()
    assert {name: vars(where)[name] for where, name in replaced} == before
    client.fire("a")
    client.flush()
    assert not traced.spans()


# events ------------------------------------------------------------------------------------------------------------


def test_a_call_of_many_rows_has_spans_of_the_first_events(traced: Traced, client: td.Client) -> None:
    batch = client.register_many([f"k{row}" for row in range(200)], timeout=None)
    client.fire_many([f"k{row}" for row in range(200)])
    client.flush()
    assert len(traced.events()) == len(set(traced.events())) == tracing.LINKS_MAX
    assert batch.done() and traced.links() == traced.events(), "a batch has as many links"


def test_the_rows_of_a_batch_that_one_event_has_settled_have_one_link(traced: Traced, client: td.Client) -> None:
    client.register_many(iter([["a", "b"], ["a"], "a"]), timeout=None)  # type: ignore[arg-type]
    client.fire("a")
    client.flush()
    assert traced.links() == traced.events()


def test_other_commands_of_a_call_are_no_events(traced: Traced, client: td.Client) -> None:
    client.forget("a")
    client.cancel_for_key("a")
    client.register("a", timeout=None).cancel()
    client.flush()
    assert not traced.events() and traced.spans()[-1].links == ()


def test_a_watermark_that_is_reached_before_has_the_event_only_if_its_mark_names_it(
    traced: Traced, client: td.Client
) -> None:
    client.advance("a", 5)
    client.flush()
    client.register({"a": 5}, timeout=None).result()
    assert traced.links() == traced.events(), "the newest event of all has reached it"
    client.fire("a")
    client.register({"a": 5}, timeout=None).result()
    assert traced.links() == [], "the newest event has the name of the key, but has reached nothing"
    client.purgatory("other").advance("a", 5)
    client.register_many([{"a": 5}], timeout=None).outcomes()
    assert traced.links() == []
    client.register_many(iter([{"a": 5}]), timeout=None).outcomes()  # type: ignore[arg-type]
    assert traced.links() == []


def test_an_event_that_was_requeued_is_not_known(manual: Manual, traced: Traced, client: td.Client) -> None:
    first = client.register("a", timeout=None)
    client.fire("a", limit=1)
    client.flush()
    assert traced.links() == traced.events()
    second = client.register("a", timeout=None)
    del first
    manual.advance(1)
    assert second.result().redelivered
    assert traced.links() == []


@pytest.mark.parametrize("how", ["expired", "cancelled"])
def test_an_operation_that_no_event_has_settled_has_no_link(
    manual: Manual, traced: Traced, client: td.Client, how: str
) -> None:
    client.fire("a")
    waits = client.register("a", timeout=1)
    if how == "cancelled":
        waits.cancel()
    manual.advance(1)
    assert traced.attributes()[-1]["timerd.state"] == how
    assert traced.links() == [] and not {"timerd.event", "timerd.mark"} & set(traced.attributes()[-1])


def test_an_event_is_sampled_as_its_call_is(client: td.Client) -> None:
    """The sampler of roots would decide by the event's trace id, and drop the event of a call that is sampled."""
    traced = Traced(ParentBased(ALWAYS_OFF))
    tracing.instrument(traced.provider)
    try:
        client.fire("a")
        sampled = SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
        with trace.use_span(trace.NonRecordingSpan(sampled)):
            client.fire("a")
    finally:
        tracing.uninstrument()
    assert len(traced.spans("timerd.fire")) == len(traced.events()) == 1
    assert traced.links() == traced.events()


class ForeignTracer(trace.Tracer):
    """A tracer that is not the SDK's: nobody can give it ids."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def start_span(self, *args: Any, **more: Any) -> trace.Span:
        return self._tracer.start_span(*args, **more)

    def start_as_current_span(self, *args: Any, **more: Any) -> Any:
        return self._tracer.start_as_current_span(*args, **more)


class ForeignProvider(trace.TracerProvider):
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider

    def get_tracer(self, *args: Any, **more: Any) -> trace.Tracer:
        return ForeignTracer(self._provider.get_tracer(*args, **more))


def test_without_the_sdk_both_spans_still_name_the_event(client: td.Client) -> None:
    traced = Traced(ALWAYS_ON)
    tracing.instrument(ForeignProvider(traced.provider))
    try:
        client.register("a", timeout=None)
        client.fire("a")
        client.flush()
        tracing.instrument(trace.NoOpTracerProvider())
        client.register("a", timeout=None)
        client.fire("a")
        client.flush()
    finally:
        tracing.uninstrument()
    assert not traced.events()
    first, second = traced.spans()
    assert ids_of(first.links[0].context) == ids_of(second.links[0].context)
    assert traced.attributes()[0]["timerd.event"] == traced.attributes()[1]["timerd.event"]


def test_an_event_without_an_arena_has_no_span(runtime_dir: Path, traced: Traced) -> None:
    client = td.Client()
    client.fire("a")
    client.fire_many(["a", "b"])
    assert not traced.events() and traced.links() == []
    with pytest.raises(td.TimerdUnavailableError):
        client.close(timeout=0)


def test_each_thread_has_the_events_of_its_own_calls(daemon: Daemon, traced: Traced) -> None:
    """The names of the spans above say which call has fired which key."""
    spans = trace.get_tracer("app", tracer_provider=traced.provider)
    names = [f"{thread}/{turn}" for thread in range(4) for turn in range(50)]

    def run(thread: int) -> None:
        for name in names[thread * 50 : thread * 50 + 50]:
            with spans.start_as_current_span(f"fire {name}"):
                shared.fire(name) if thread % 2 else shared.fire_many([name])

    with td.connect(timeout=PATIENCE_S) as shared:
        waits = []
        for name in names:
            with spans.start_as_current_span(f"wait {name}"):
                waits.append(shared.register(name, timeout=None))
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(run, range(4)))
        assert all(operation.result(PATIENCE_S) for operation in waits)
        eventually(lambda: len(traced.spans("timerd.operation")) == len(names))
    above = {
        ids_of(span.context): span.name.partition(" ")[2]
        for kind in ("fire", "wait")
        for span in traced.spans(*(f"{kind} {name}" for name in names))
    }
    keys: dict[Ids, set[str]] = {}
    for span in traced.spans():
        keys.setdefault(ids_of(span.links[0].context), set()).add(above[ids_of(span.parent)])
    assert len(keys) == len(names) and all(len(found) == 1 for found in keys.values())


def commands_of(daemon: Daemon) -> list[bytes]:
    """The commands of some calls, without the times at which they were made. The daemon is not there."""
    client = td.Client()
    client.register("a", timeout=None, payload=b"payload")
    client.register_many(["a", {"b": 5}], timeout=None, payloads=b"payload")
    registrations = client._ledger.issued
    client.fire("a", value=b"value")
    client.fire("a", value=b"value", limit=1)
    client.fire_many(["a", "b"], values=[b"first", b"second"])
    client.advance("b", 5)
    client.fail("a", code=1, value=b"value")
    commands = [client._ledger.command(number) for number in range(1, client._ledger.issued + 1)]
    with pytest.raises(td.TimerdUnavailableError):
        client.close(timeout=0)
    at = offset_of(RegisterCommand, "registered_ns")
    return [command[:at] + command[at + 8 :] for command in commands[:registrations]] + commands[registrations:]


def test_nothing_is_added_to_a_command(daemon: Daemon) -> None:
    """Not to a payload, and not to a value: the commands are equal, byte for byte, with the hook and without it."""
    daemon.stop()  # so commands are kept; the arena stays
    without = commands_of(daemon)
    traced = Traced()
    tracing.instrument(traced.provider)
    try:
        assert commands_of(daemon) == without
    finally:
        tracing.uninstrument()
    assert len(traced.events()) == 6


def test_payload_and_value_are_those_of_the_caller(traced: Traced, client: td.Client) -> None:
    waits = client.register("a", timeout=None, payload=b"payload")
    client.fire("a", value=b"value")
    outcome = waits.result()
    assert (outcome.payload, outcome.value) == (b"payload", b"value")
    assert traced.links() == traced.events()
