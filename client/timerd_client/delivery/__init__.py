"""Deliveries as in KIP-91: one timeout covers everything, from the accumulator to the last retry.

    with Producer(td.client(), post) as producer:       # timerd_client.delivery.aio has one for asyncio
        producer.send({"user": 7}, lane="user-7")

accumulator.py has the rules, without threads or I/O. courier.py drives the accumulator with threads, and aio.py in a
loop. timerd holds the deadlines. Not here: deliveries of Spark's tasks (timerd_spark.tasks), which use the courier.
"""

from .batch import Delivery, DeliveryOutcome
from .errors import DeliveryTimeoutTooShortError, RetriableError, is_retriable
from .producer import Producer
from .settings import Settings

__all__ = [
    "Delivery",
    "DeliveryOutcome",
    "DeliveryTimeoutTooShortError",
    "Producer",
    "RetriableError",
    "Settings",
    "is_retriable",
]
