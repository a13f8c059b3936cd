"""A chat over several workers: long polls that lose no message and show none twice.

    GET  /rooms/ROOM?after=NUMBER   200 with the messages after NUMBER, as soon as there are any; 204 after 25 s
    POST /rooms/ROOM                {"id": ..., "text": ...}: 201, or 200 if a message has this id already

The messages are in SQLite. timerd wakes the polls of all workers when any worker has stored a message. A poll names the
last message that its reader has, so the next answer has the messages that came between two polls. A writer that got no
answer posts again with the same id.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import NamedTuple

from flask import Flask, Response, jsonify, request

import timerd as td
from timerd_client.web import WSGI

DATABASE = os.environ.get("CHAT_DATABASE", "chat.sqlite")
POLL_S = float(os.environ.get("CHAT_POLL_S", "25"))

app = Flask(__name__, static_folder=None)
client = td.client()  # each worker has its own, which connects at its first use


class Message(NamedTuple):
    """A row. Its number is larger than the numbers of all earlier messages."""

    number: int
    id: str
    text: str


def database() -> closing[sqlite3.Connection]:
    """A connection for a few statements, each of which is a transaction."""
    return closing(sqlite3.connect(DATABASE, timeout=30, isolation_level=None))


with database() as at_start:
    at_start.execute("PRAGMA journal_mode = WAL")
    at_start.execute(
        "CREATE TABLE IF NOT EXISTS messages"
        " (number INTEGER PRIMARY KEY AUTOINCREMENT, room TEXT NOT NULL, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL)"
    )
    at_start.execute("CREATE INDEX IF NOT EXISTS by_room ON messages (room, number)")


def messages(room: str, after: int) -> list[Message]:
    """The messages of a room whose numbers are larger than `after`, in order."""
    with database() as connection:
        rows = connection.execute(
            "SELECT number, id, text FROM messages WHERE room = ? AND number > ? ORDER BY number LIMIT 100",
            (room, after),
        )
        return [Message(*row) for row in rows]


@app.get("/rooms/<room>")
def poll(room: str) -> tuple[Response, int]:
    """Wait for messages. While the daemon is lost, this asks the database at intervals."""
    after = request.args.get("after", 0, int)
    found = client.wait_for(lambda: messages(room, after), f"room/{room}", timeout=POLL_S, unavailable="poll")
    return (jsonify([one._asdict() for one in found]), 200) if found else (Response(), 204)


@app.post("/rooms/<room>")
def post(room: str) -> tuple[Response, int]:
    """Store the row first, then fire the event: so a woken reader finds the row."""
    message = request.get_json()
    with database() as connection:
        stored = connection.execute(
            "INSERT OR IGNORE INTO messages (room, id, text) VALUES (?, ?, ?)", (room, message["id"], message["text"])
        )
    client.fire(f"room/{room}")  # also for a repeated post: the worker of the first post may have died before this line
    return Response(), 201 if stored.rowcount else 200


@app.get("/pid")
def pid() -> str:
    return str(os.getpid())


application = WSGI(app)
