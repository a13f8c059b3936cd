"""The clients that play in the checks: what each can do, its codecs, and the program that plays its roles.

A check asks for the clients that can do what it needs. To add a client, add it to CLIENTS, and to install.py how it is
installed by name.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[3] / "build" / "kafka-clients"  # install.py puts programs here
PYTHON = KEPT / "python"  # packages that clients in Python import
NODE = KEPT / "node_modules"
JARS, CLASSES = KEPT / "jars", KEPT / "classes"

# Roles, which clients/peer.py describes.
ROLES = frozenset({"produce", "consume", "member", "commit", "committed", "ask"})
# And what else a client may be able to do:
OFFSET = "offset"  # report the offset of each record that it has sent
THROTTLE = "throttle"  # report throttle times
TIMES = "times"  # send records with given times, and many of them in one batch
LARGEST = "largest"  # ask for the record with the largest time
DELETE = "delete"  # delete records
STATIC = "static"  # be a static member of a group
OLD = "old"  # use old versions of the APIs


class Client(NamedTuple):
    """A client."""

    short: str  # stands in the values of its records
    can: frozenset[str]
    codecs: tuple[str, str]  # chosen so that the clients together use all codecs


CLIENTS = {
    "kafka-python": Client("kp", ROLES | {OFFSET, THROTTLE, TIMES, LARGEST, DELETE, STATIC}, ("gzip", "lz4")),
    # It has no figure for throttle times, and no call for the record with the largest time.
    "aiokafka": Client("ak", ROLES | {OFFSET, TIMES, DELETE, STATIC}, ("snappy", "zstd")),
    "confluent-kafka": Client("ck", ROLES | {OFFSET, THROTTLE, TIMES, LARGEST, DELETE, STATIC, OLD}, ("lz4", "zstd")),
    # Its command line sends records with the present time alone, and commits offsets only as a member.
    "kcat": Client(
        "kc", frozenset({"produce", "consume", "member", "ask", OFFSET, THROTTLE, STATIC, OLD}), ("gzip", "lz4")
    ),
    "kafkajs": Client("kj", ROLES | {OFFSET, TIMES, DELETE}, ("gzip", "snappy")),
    "java": Client("ja", ROLES | {OFFSET, THROTTLE, TIMES, LARGEST, DELETE, STATIC}, ("gzip", "lz4")),
}
IN_PYTHON = ("kafka-python", "aiokafka", "confluent-kafka")  # the environment of the tests has these


def is_there(client: str) -> bool:
    """Whether the client can be run here."""
    match client:
        case "kcat":
            return shutil.which("kcat") is not None
        case "kafkajs":
            return shutil.which("node") is not None and (NODE / "kafkajs" / "package.json").exists()
        case "java":
            return shutil.which("java") is not None and (CLASSES / "JavaPeer.class").exists()
        case _:
            return client in IN_PYTHON


def codecs_of(client: str) -> list[str]:
    """The codecs that the client can use here. For some it needs a package that install.py installs."""
    needs = {"kafka-python lz4": PYTHON / "lz4", "kafkajs snappy": NODE / "kafkajs-snappy"}
    return [codec for codec in CLIENTS[client].codecs if needs.get(f"{client} {codec}", HERE).exists()]


def command_of(plan: dict[str, Any]) -> list[str] | None:
    """The program that plays the plan's role, or None if it is played in Python."""
    match plan["client"]:
        case "kafkajs":
            return ["node", str(HERE / "other" / "kafkajs_peer.js"), json.dumps(plan)]
        case "java":
            # For some seconds the first compiler is the fastest, and many of these processes run at once.
            flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m"]
            return ["java", *flags, "-cp", f"{CLASSES}{os.pathsep}{JARS}/*", "JavaPeer", json.dumps(plan)]
        case _:
            return None


def environment() -> dict[str, str]:
    """The environment of the programs."""
    return {**os.environ, "NODE_PATH": str(NODE), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
