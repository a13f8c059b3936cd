"""A request while faults are set: it may be refused, answered late, or get half of its answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from timerd_client.operations import ThrottledChannel
from timerd_kafka.apis.frames import frame_of
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.faults.faults import Fate, metadata_with
from timerd_kafka.faults.rules import ERRORS
from timerd_kafka.faults.shapes import Form
from timerd_kafka.waits.waits import DaemonLost
from timerd_kafka.wire.codec import Request

log = logging.getLogger("timerd_kafka.faults")


async def answer_with_faults(
    broker: Broker, call: Call, request: Request, answer: Callable[[Broker, Call], Awaitable[Any]]
) -> bytes | None:
    """The frame of the answer; None if there is none (acks=0), or it was cut."""
    fate = broker.faults.fate(call.api, request, broker.catalog)
    if fate.error is None:
        answered = await answer(broker, call)
    else:
        answered = await refused(broker, call, fate, Form(call.api, broker.catalog), answer)
    if fate.seconds:
        await later(broker, call, fate.seconds)
    frame = None if answered is None else await frame_of(call.api, request.correlation_id, answered)
    if not fate.is_cut:
        return frame
    call.connection.cut(frame or b"")
    return None


async def refused(
    broker: Broker, call: Call, fate: Fate, form: Form, answer: Callable[[Broker, Call], Awaitable[Any]]
) -> Any:
    """The answer with the error of a rule. Parts of the request that the rule does not name are carried out.

    A Metadata request is carried out whole.
    """
    rule = fate.error
    assert rule is not None
    if call.api.name == "Metadata":  # clients need the brokers in each answer
        answered = await answer(broker, call)
        return metadata_with(answered, rule)
    rest, failed = form.divide(call.body, ERRORS[rule.error or ""], rule.meets)
    if getattr(call.body, "acks", None) == 0:
        if rest is not None:
            await answer(broker, call._replace(body=rest))
        call.connection.refuse("a produce request with acks=0 has failed on demand, and gets no answer with the error")
        return None
    if rest is None:
        return failed
    if hasattr(rest, "min_bytes"):
        rest = replace(rest, min_bytes=0)  # a fetch with an error is answered at once
    answered = await answer(broker, call._replace(body=rest))
    return form.merge(answered, failed)


async def later(broker: Broker, call: Call, seconds: float) -> None:
    """Wait before the answer goes out, as an operation in the purgatory "fault"."""
    try:
        await broker.waits.until(
            "fault", seconds, lambda give: ThrottledChannel(call.connection.peer, lambda: None, give)
        )
    except DaemonLost as error:
        log.warning("the answer to %s is late by less than %g s: %s", call.connection.peer, seconds, error)
