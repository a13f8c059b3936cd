"""The watch keys of the operations, spelled in one place for waiters and for events."""

from __future__ import annotations


def partition_key(topic: str, partition: int) -> str:
    """Key of a partition: orders-0."""
    return f"{topic}-{partition}"


def replica_key(partition: str, replica: str) -> str:
    """Key of a replica of a partition. Its watermark is the offset that the replica has: orders-0@broker-2."""
    return f"{partition}@{replica}"


def topic_key(topic: str) -> str:
    """Key of a topic's metadata: topic:orders."""
    return f"topic:{topic}"


def join_key(group: str) -> str:
    """Key of a group's rebalance: join:workers."""
    return f"join:{group}"


def sync_key(group: str) -> str:
    """Key of a group's assignment: sync:workers."""
    return f"sync:{group}"


def member_key(group: str, member: str) -> str:
    """Key of a member's heartbeats: member:workers/7."""
    return f"member:{group}/{member}"
