"""The OpenTelemetry hook: a span for each operation or batch until it settles, and for each call that makes events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import timerd as td
from timerd.testing import Manual
from timerd_client import aio, tracing
from timerd_client.link.surface import Surface


class Traced:
    """Tracing into memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

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
    before = {name: vars(where)[name] for where, name in (*tracing.REGISTRATIONS, *tracing.EVENTS)}
    traced = Traced()
    tracing.instrument(traced.provider)
    tracing.instrument(traced.provider)
    assert vars(Surface)["register"] is not before["register"]
    tracing.uninstrument()
    assert {name: vars(where)[name] for where, name in (*tracing.REGISTRATIONS, *tracing.EVENTS)} == before
    client.fire("a")
    client.flush()
    assert not traced.spans()
