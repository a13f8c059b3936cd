"""All APIs of the broker, and the handler that gives each frame to its API's module."""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.data import delete_records, fetch, init_producer_id, list_offsets, produce
from timerd_kafka.apis.faulty import answer_with_faults
from timerd_kafka.apis.frames import frame_of
from timerd_kafka.apis.groups import (
    consumer_group_heartbeat,
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
from timerd_kafka.apis.topics import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
    metadata,
)
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.wire.codec import START, BadFrame, UnknownApi, api_of, versions_of
from timerd_kafka.wire.connection import Connection

CLIENT_ID = struct.Struct(">h")  # the size of the client's id: it follows START, and the id follows it
CLIENT_ID_SHOWN = 100  # characters
NOTED_MAX = 1_000
log = logging.getLogger("timerd_kafka.broker")

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
    33: ("alter_configs", alter_configs.answer),
    37: ("create_partitions", create_partitions.answer),
    42: ("delete_groups", delete_groups.answer),
    44: ("incremental_alter_configs", incremental_alter_configs.answer),
    68: ("consumer_group_heartbeat", consumer_group_heartbeat.answer),
}


class OldClients:
    """The clients that asked for an API in a version that this broker does not have: the log names each once.

    Kafka closes the connection of such a client, too. Most of these clients do not show the reason: without the log, a
    user would only see that the client does not work.
    """

    def __init__(self) -> None:
        self._noted: set[tuple[str, str, int]] = set()

    def note(self, client: str, name: str, version: int) -> None:
        """Log the client, unless it was logged before, or too many were."""
        if len(self._noted) < NOTED_MAX and (client, name, version) not in self._noted:
            self._noted.add((client, name, version))
            log.warning(
                "%s asks for %s v%d, and its connection is closed: this broker has v%d to v%d, as Kafka 4",
                client, name, version, versions_of(name)[0], versions_of(name)[-1],
            )  # fmt: skip


def client_of(connection: Connection, frame: bytes) -> str:
    """The client of a frame, for people: its software if it has named it, its client id, and its address."""
    (size,) = CLIENT_ID.unpack_from(frame.ljust(START.size + CLIENT_ID.size, b"\0"), START.size)
    begin = START.size + CLIENT_ID.size
    client_id = frame[begin : begin + max(0, size)].decode(errors="replace")[:CLIENT_ID_SHOWN]
    return f"{connection.software[:CLIENT_ID_SHOWN] or 'a client'} {client_id!r} ({connection.peer.rpartition(':')[0]})"


def handler_of(broker: Broker) -> Callable[[Connection, bytes], Awaitable[bytes | None]]:
    """The handler of all frames of this broker's connections."""
    old_clients = OldClients()

    async def handle(connection: Connection, frame: bytes) -> bytes | None:
        if len(frame) < START.size:
            raise BadFrame(f"a frame of {len(frame)} bytes: a request has {START.size} at least")
        key, version, correlation_id = START.unpack_from(frame)
        if key not in APIS:
            raise UnknownApi(f"API {key}, which this broker does not have")
        name, answer = APIS[key]
        if version not in versions_of(name):
            if key == API_VERSIONS:  # the client asks again, in a version of this answer's list (KIP-511)
                first = Call(api_of(key, 0), None, "", connection)
                names = broker.api_keys
                return first.api.write(
                    correlation_id, api_versions.versions(first, names, ErrorCode.unsupported_version)
                )
            oldest, newest = versions_of(name)[0], versions_of(name)[-1]
            old_clients.note(client_of(connection, frame), name, version)
            raise UnknownApi(f"{name} v{version}: this broker has {oldest} to {newest}")
        api = api_of(key, version)
        request = api.read(frame)
        call = Call(api, request.body, request.client_id, connection)
        if broker.faults.rules:
            return await answer_with_faults(broker, call, request, answer)
        answered = await answer(broker, call)
        return None if answered is None else await frame_of(api, correlation_id, answered)

    return handle


def preload() -> None:
    """Load the versions that most clients need. A process that forks brokers loads them once for all brokers.

    To load the newest version of every API takes 0.1 s in all; to load all versions, 0.6 s. So an older version is
    loaded when a client asks for it.
    """
    for key, (name, _) in APIS.items():
        api_of(key, versions_of(name)[-1])
