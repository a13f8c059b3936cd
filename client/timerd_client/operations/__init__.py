"""Kafka's named operations, ready to use: each is a delayed operation over the public API, for any application.

    wait = DelayedFetch(asked, look, answer, min_bytes=64_000)
    wait.watch(client, timeout=0.5)

An operation watches the keys of keys.py. When the state for which it waits has changed, make an event on these keys:
`client.fire(key)`, `client.advance(key, offset)`, or `client.check_and_complete(key)`. No other room of timerd_client
imports this room. The Kafka broker is built on it.
"""

from timerd_client.operations.codes import Errors
from timerd_client.operations.delete_records import DelayedDeleteRecords
from timerd_client.operations.fetch import Asked, Available, DelayedFetch
from timerd_client.operations.heartbeat import DelayedHeartbeat
from timerd_client.operations.join import DelayedJoin
from timerd_client.operations.keys import join_key, member_key, partition_key, sync_key, topic_key
from timerd_client.operations.named import NamedOperation
from timerd_client.operations.parts import Part
from timerd_client.operations.produce import ALL_REPLICAS, Appended, DelayedProduce, Replicas
from timerd_client.operations.sync import DelayedSync
from timerd_client.operations.throttle import Quota, ThrottledChannel
from timerd_client.operations.topics import DelayedTopics

__all__ = [
    "ALL_REPLICAS",
    "Appended",
    "Asked",
    "Available",
    "DelayedDeleteRecords",
    "DelayedFetch",
    "DelayedHeartbeat",
    "DelayedJoin",
    "DelayedProduce",
    "DelayedSync",
    "DelayedTopics",
    "Errors",
    "NamedOperation",
    "Part",
    "Quota",
    "Replicas",
    "ThrottledChannel",
    "join_key",
    "member_key",
    "partition_key",
    "sync_key",
    "topic_key",
]
