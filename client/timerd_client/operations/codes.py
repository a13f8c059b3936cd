"""The error codes in the answers of operations: Kafka's own numbers (org.apache.kafka.common.protocol.Errors)."""

from __future__ import annotations

from enum import IntEnum


class Errors(IntEnum):
    """Codes of a partition, a topic or a member in an answer. An application may use other codes, too."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    TOPIC_ALREADY_EXISTS = 36
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
