"""Messages between the supervisor, its brokers and its users: long ones arrive whole, and wrong ones end no process."""

from __future__ import annotations

import asyncio
import json
import selectors
import socket

import pytest

from support.kafka.patience import PATIENCE_S
from timerd_kafka.faults.rules import TEXT_MAX
from timerd_kafka.supervisor.link import Link
from timerd_kafka.testing import KafkaCluster, KafkaClusterError
from timerd_kafka.worker.control import line_of, serve_control

LONG = 1 << 20  # bytes: a socket takes some 200,000 at once


@pytest.mark.long
def test_a_command_that_a_socket_does_not_take_at_once_arrives_and_ends_no_broker() -> None:
    with KafkaCluster(["--workers", "1", "--replicas", "1"]) as cluster:
        before = cluster.pids()
        with pytest.raises(KafkaClusterError, match="stop_follower: no follower of topic='ttt"):
            cluster.stop_follower("t" * LONG)
        assert cluster.pids() == before


@pytest.mark.long
def test_brokers_and_users_get_faults_that_a_socket_does_not_take_at_once() -> None:
    with KafkaCluster(["--workers", "1", "--replicas", "1"]) as cluster:
        before = cluster.pids()
        long = "é" * TEXT_MAX  # in JSON six bytes each
        for _ in range(20):
            cluster.cut("OffsetCommit", topic=long, group=long, client_id=long)
        assert [(one.topic, one.group, one.client_id) for one in cluster.faults()] == [(long, long, long)] * 20
        assert cluster.pids() == before


def test_a_broker_answers_lines_that_are_no_commands_and_goes_on() -> None:
    async def main() -> None:
        ours, its = socket.socketpair()
        supervisor_ended = asyncio.Event()
        await serve_control(its, {"state": lambda _: {"waiting": 0}}, supervisor_ended.set)
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        for line in (b'{"do": "sta', b"[]", b"\xff", b'{"number": 6}'):
            writer.write(line + b"\n")
        writer.write(line_of({"do": "state", "number": 7}))
        answers = [json.loads(await reader.readline()) for _ in range(5)]
        assert ["error" in answer for answer in answers] == [True, True, True, True, False]
        assert [answer["number"] for answer in answers] == [None, None, None, 6, 7]
        assert not supervisor_ended.is_set()
        writer.close()
        await writer.wait_closed()
        await supervisor_ended.wait()

    asyncio.run(main())


def test_a_link_whose_other_end_goes_before_it_has_read_everything_ends_once() -> None:
    ended: list[Link] = []
    ours, its = socket.socketpair()
    with selectors.DefaultSelector() as selector:
        link = Link(ours, selector, lambda *_: None, ended.append)
        link.say({"text": "x" * LONG})
        its.close()
        ((key, _),) = selector.select(PATIENCE_S)
        key.data(key.fileobj)
        assert ended == [link] and not selector.get_map()
        link.say({})
        link.close()
        assert ended == [link]
