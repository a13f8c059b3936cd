"""A member of a group that sends exactly the requests that a check tells it to send."""

from __future__ import annotations

from typing import Any, Self

from kio.schema.errors import ErrorCode

from support.kafka.rawkafka import RawKafka, seconds
from timerd_kafka.wire.codec import Question

FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 10, 11, 12, 13, 14


def coordinator_address(raw: RawKafka, group: str) -> str:
    """The address of a group's coordinator."""
    question = Question(FIND_COORDINATOR, 3)
    request: Any = question.request
    raw.send(question.write(0, "raw", request(key=group, key_type=0)))
    found = question.read(raw.frame())
    return f"{found.host}:{found.port}"


class RawMember:
    """One member of a group, with a connection to the group's coordinator."""

    def __init__(self, bootstrap: str, group: str, *, session: float, rebalance: float) -> None:
        with RawKafka(bootstrap) as raw:
            address = coordinator_address(raw, group)
        self.raw = RawKafka(address)
        self.group, self.session, self.rebalance = group, session, rebalance
        self.member, self.generation, self.is_leader = "", -1, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def join(self) -> list[str]:
        """Join. Returns the members of the generation if this member leads it, and otherwise none."""
        while True:
            answer = self._join()
            if answer.error_code == ErrorCode.none:
                break
            if answer.error_code != ErrorCode.member_id_required:
                raise AssertionError(f"JoinGroup: {answer.error_code!r}")
            self.member = answer.member_id
        self.member, self.generation = answer.member_id, answer.generation_id
        self.is_leader = answer.leader == self.member
        return [one.member_id for one in answer.members]

    def _join(self) -> Any:
        module = Question(JOIN, 5).module
        return self.raw.ask(
            JOIN,
            5,
            group_id=self.group,
            session_timeout=seconds(self.session),
            rebalance_timeout=seconds(self.rebalance),
            member_id=self.member,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=(module.JoinGroupRequestProtocol(name="range", metadata=b""),),
        )

    def sync(self) -> ErrorCode:
        """Ask for the assignment. A leader assigns all the work to itself."""
        module = Question(SYNC, 3).module
        given = (module.SyncGroupRequestAssignment(member_id=self.member, assignment=b"all"),)
        answer = self.raw.ask(
            SYNC,
            3,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member,
            group_instance_id=None,
            assignments=given if self.is_leader else (),
        )
        return ErrorCode(answer.error_code)

    def heartbeat(self) -> ErrorCode:
        """Send a heartbeat."""
        answer = self.raw.ask(
            HEARTBEAT,
            3,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member,
            group_instance_id=None,
        )
        return ErrorCode(answer.error_code)

    def leave(self) -> None:
        """Leave the group."""
        answer = self.raw.ask(LEAVE, 1, group_id=self.group, member_id=self.member)
        if answer.error_code != ErrorCode.none:
            raise AssertionError(f"LeaveGroup: {answer.error_code!r}")
