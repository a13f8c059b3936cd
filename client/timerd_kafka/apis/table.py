"""All APIs of the broker, and the handler that gives each frame to its API's module."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.data import delete_records, fetch, init_producer_id, list_offsets, produce
from timerd_kafka.apis.groups import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
    sync_group,
)
from timerd_kafka.apis.topics import api_versions, create_topics, delete_topics, describe_configs, metadata
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.wire.codec import START, BadFrame, UnknownApi, api_of, versions_of
from timerd_kafka.wire.connection import Connection

Answer = Callable[[Broker, Call], Awaitable[Any]]
API_VERSIONS = 18

# By the key of the API: its name in kio, and the function that answers.
APIS: dict[int, tuple[str, Answer]] = {
    0: ("produce", produce.answer),
    1: ("fetch", fetch.answer),
    2: ("list_offsets", list_offsets.answer),
    3: ("metadata", metadata.answer),
    8: ("offset_commit", offset_commit.answer),
    9: ("offset_fetch", offset_fetch.answer),
    10: ("find_coordinator", find_coordinator.answer),
    11: ("join_group", join_group.answer),
    12: ("heartbeat", heartbeat.answer),
    13: ("leave_group", leave_group.answer),
    14: ("sync_group", sync_group.answer),
    15: ("describe_groups", describe_groups.answer),
    16: ("list_groups", list_groups.answer),
    API_VERSIONS: ("api_versions", api_versions.answer),
    19: ("create_topics", create_topics.answer),
    20: ("delete_topics", delete_topics.answer),
    21: ("delete_records", delete_records.answer),
    22: ("init_producer_id", init_producer_id.answer),
    32: ("describe_configs", describe_configs.answer),
    42: ("delete_groups", delete_groups.answer),
}


def handler_of(broker: Broker) -> Callable[[Connection, bytes], Awaitable[bytes | None]]:
    """The handler of all frames of this broker's connections."""

    async def handle(connection: Connection, frame: bytes) -> bytes | None:
        if len(frame) < START.size:
            raise BadFrame(f"a frame of {len(frame)} bytes: a request has {START.size} at least")
        key, version, correlation_id = START.unpack_from(frame)
        if key not in APIS:
            raise UnknownApi(f"API {key}, which this broker does not have")
        name, answer = APIS[key]
        if version not in versions_of(name):
            if key == API_VERSIONS:  # the client asks again, in a version that the answer lists (KIP-511)
                oldest = Call(api_of(key, 0), None, "", connection)
                names = broker.api_keys
                return oldest.api.write(
                    correlation_id, api_versions.versions(oldest, names, ErrorCode.unsupported_version)
                )
            raise UnknownApi(f"{name} v{version}: this broker has {versions_of(name)[0]} to {versions_of(name)[-1]}")
        api = api_of(key, version)
        request = api.read(frame)
        answered = await answer(broker, Call(api, request.body, request.client_id, connection))
        return None if answered is None else api.write(correlation_id, answered)

    return handle


def preload() -> None:
    """Load the versions that most clients need. A process that forks brokers loads them once for all brokers.

    The newest version of each API takes 0.1 s, all versions 0.6 s. The other versions are loaded when a client asks.
    """
    for key, (name, _) in APIS.items():
        api_of(key, versions_of(name)[-1])
