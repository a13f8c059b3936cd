"""The settings of a producer, as keyword arguments with times in seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, TypedDict

from timerd_client.arguments import seconds_of, shown
from timerd_client.link.surface import Surface
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import TIMEOUT_NS_MAX

from .options import (
    BACKOFF_MAX_MS,
    BACKOFF_MS,
    BATCH_BYTES,
    BATCH_RECORDS,
    BUFFER_BYTES,
    BUFFER_RECORDS,
    DELIVERY_TIMEOUT_S,
    IN_FLIGHT,
    LINGER_MS,
    REQUEST_TIMEOUT_S,
    DeliveryOptions,
    S,
)

Seconds = float | timedelta
MAX_BLOCK_S: Final = 60.0


class Settings(TypedDict, total=False):
    """The settings of a producer, with the names of Kafka's configuration. Times are seconds or a timedelta."""

    delivery_timeout: Seconds
    """The longest time from send() to the callback. Default: 120, or linger + request_timeout if more (KIP-91)."""
    request_timeout: Seconds
    """The time for one attempt. Default: 30."""
    linger: Seconds
    """How long a batch takes records. Default: 0.005."""
    max_block: Seconds
    """How long send() waits at most. Default: 60."""
    retries: int | None
    """How many retries follow the first attempt. Default: None (retries until delivery_timeout)."""
    retry_backoff: Seconds
    """The pause before the first retry; it doubles with each retry (KIP-580). Default: 0.1."""
    retry_backoff_max: Seconds
    """The longest pause. Default: 1, or retry_backoff if that is more."""
    batch_size: int
    """Records in a batch. Default: 500."""
    batch_bytes: int
    """Bytes of the records in a batch, as send(size=) gives them. Default: 1 MiB."""
    max_in_flight: int
    """Attempts under way, over all lanes; a lane has one at a time. Default: 8."""
    buffer_records: int
    """Records that have not settled. Default: 10,000."""
    buffer_bytes: int
    """Bytes of the records that have not settled. Default: 32 MiB."""


def options_of(
    delivery_timeout: Seconds | None = None,
    request_timeout: Seconds = REQUEST_TIMEOUT_S,
    linger: Seconds = LINGER_MS / 1e3,
    max_block: Seconds = MAX_BLOCK_S,
    retries: int | None = None,
    retry_backoff: Seconds = BACKOFF_MS / 1e3,
    retry_backoff_max: Seconds | None = None,
    batch_size: int = BATCH_RECORDS,
    batch_bytes: int = BATCH_BYTES,
    max_in_flight: int = IN_FLIGHT,
    buffer_records: int = BUFFER_RECORDS,
    buffer_bytes: int = BUFFER_BYTES,
) -> tuple[DeliveryOptions, float]:
    """The options of these Settings, and max_block in seconds. Raises InvalidValueError and derived errors."""
    linger_ns, request_ns, backoff_ns = (
        _ns("linger", linger),
        _ns("request_timeout", request_timeout, 1),
        _ns("retry_backoff", retry_backoff),
    )
    if delivery_timeout is None:
        delivery_ns = max(DELIVERY_TIMEOUT_S * S, linger_ns + request_ns)
    else:
        delivery_ns = _ns("delivery_timeout", delivery_timeout, 1)
    if retry_backoff_max is None:
        backoff_max_ns = max(BACKOFF_MAX_MS * S // 1_000, backoff_ns)
    else:
        backoff_max_ns = _ns("retry_backoff_max", retry_backoff_max)
    options = DeliveryOptions(
        delivery_timeout_ns=delivery_ns,
        request_timeout_ns=request_ns,
        linger_ns=linger_ns,
        batch_size=batch_size,
        batch_bytes=batch_bytes,
        max_in_flight=max_in_flight,
        retries=retries,
        retry_backoff_ns=backoff_ns,
        retry_backoff_max_ns=backoff_max_ns,
        buffer_records=buffer_records,
        buffer_bytes=buffer_bytes,
    )
    return options, _ns("max_block", max_block) / S


def _ns(name: str, given: Seconds, least_ns: int = 0) -> int:
    seconds = seconds_of(given)
    if seconds is None or not least_ns <= seconds * S <= TIMEOUT_NS_MAX:
        least = "more than 0" if least_ns else "0"
        raise InvalidValueError(
            f"{name}={shown(given)}: give a time from {least} to {TIMEOUT_NS_MAX // S} s, as seconds or a timedelta"
        )
    return round(seconds * S)


def settings_of(given: Settings) -> tuple[DeliveryOptions, float]:
    """As options_of. Raises TypeError for an unknown setting."""
    if unknown := set(given) - set(Settings.__annotations__):
        raise TypeError(f"no setting {sorted(unknown)}; there are {', '.join(Settings.__annotations__)}")
    return options_of(**given)


def client_of(given: Surface[Any, Any], *, in_loop: bool) -> Surface[Any, Any]:
    """`given`, if it is a client or a purgatory: of asyncio with `in_loop`, else threaded. Else InvalidValueError."""
    if not isinstance(given, Surface):
        raise InvalidValueError(f"client={shown(given)}: give a client, such as td.client(), or a purgatory of one")
    if in_loop != given.IN_LOOP:
        face, room = ("of asyncio", "delivery.aio") if given.IN_LOOP else ("threaded", "delivery")
        raise InvalidValueError(f"client={shown(given)} is {face}: give it to timerd_client.{room}.Producer")
    return given
