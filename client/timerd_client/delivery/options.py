"""The options of deliveries: times, sizes and limits, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import TIMEOUT_NS_MAX

from .errors import DeliveryTimeoutTooShortError

NEVER: Final = (1 << 63) - 1
MS: Final = 1_000_000
S: Final = 1_000_000_000

DELIVERY_TIMEOUT_S: Final = 120
REQUEST_TIMEOUT_S: Final = 30
LINGER_MS: Final = 5
BACKOFF_MS: Final = 100
BACKOFF_MAX_MS: Final = 1_000
BATCH_RECORDS: Final = 500
BATCH_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 8
BUFFER_RECORDS: Final = 10_000
BUFFER_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """All times are in ns. The defaults of the times, of `retries` and of `buffer_bytes` are Kafka's.

    Raises InvalidValueError, or an error derived from it.
    """

    delivery_timeout_ns: int = DELIVERY_TIMEOUT_S * S
    request_timeout_ns: int = REQUEST_TIMEOUT_S * S
    linger_ns: int = LINGER_MS * MS
    batch_size: int = BATCH_RECORDS  # records
    batch_bytes: int = BATCH_BYTES
    max_in_flight: int = IN_FLIGHT  # batches, over all lanes
    retries: int | None = None  # attempts after the first; None: until the deadline
    retry_backoff_ns: int = BACKOFF_MS * MS  # doubles with each attempt
    retry_backoff_max_ns: int = BACKOFF_MAX_MS * MS
    buffer_records: int = BUFFER_RECORDS  # records in the accumulator, including those in flight
    buffer_bytes: int = BUFFER_BYTES

    def __post_init__(self) -> None:
        for name, smallest in _SMALLEST.items():
            value = getattr(self, name)
            if name == "retries" and value is None:
                continue
            largest = TIMEOUT_NS_MAX if name.endswith("_ns") else NEVER
            if type(value) is not int or not smallest <= value <= largest:
                raise InvalidValueError(f"{name}={value!r}: an int from {smallest} to {largest}")
        least_ns = self.linger_ns + self.request_timeout_ns
        if self.delivery_timeout_ns < least_ns:
            raise DeliveryTimeoutTooShortError(
                f"delivery_timeout={seconds(self.delivery_timeout_ns)} < linger={seconds(self.linger_ns)} + "
                f"request_timeout={seconds(self.request_timeout_ns)}: give a delivery_timeout of "
                f"{seconds(least_ns)} at least, or a shorter request_timeout"
            )
        if self.retry_backoff_max_ns < self.retry_backoff_ns:
            raise InvalidValueError(
                f"retry_backoff_max={seconds(self.retry_backoff_max_ns)} < "
                f"retry_backoff={seconds(self.retry_backoff_ns)}: give at least as much"
            )


_SMALLEST = {
    "delivery_timeout_ns": 1,
    "request_timeout_ns": 1,
    "linger_ns": 0,
    "batch_size": 1,
    "batch_bytes": 1,
    "max_in_flight": 1,
    "retries": 0,
    "retry_backoff_ns": 0,
    "retry_backoff_max_ns": 0,
    "buffer_records": 1,
    "buffer_bytes": 1,
}


def seconds(ns: int) -> str:
    """A time as people read it in a message."""
    return f"{ns / S:g} s"
