"""Server-sent events over several workers: each stream has every message, once and in order.

    GET  /rooms/ROOM    a stream; after a break the browser names the last message that it has (Last-Event-ID)
    POST /rooms/ROOM    {"id": ..., "text": ...}: 201, or 200 if a message has this id already

The messages are in SQLite. A subscription tells a stream when there are new messages, so the stream sleeps in between.
A stream asks the database after each event, after a gap, and every 15 s. So the messages that it sends depend on the
database alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Annotated

from fastapi import FastAPI, Header, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel

import timerd as td
from timerd import aio
from timerd_client.web import ASGI

DATABASE = os.environ.get("EVENTS_DATABASE", "events.sqlite")
SILENT_S = float(os.environ.get("EVENTS_SILENT_S", "15"))

app = FastAPI()
client = aio.client()  # each worker has its own, which connects at its first use


class Message(BaseModel):
    """A message as it is posted."""

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


def messages(room: str, after: int) -> list[tuple[int, str, str]]:
    """The messages of a room whose numbers are larger than `after`, in order: number, id and text."""
    with database() as connection:
        return connection.execute(
            "SELECT number, id, text FROM messages WHERE room = ? AND number > ? ORDER BY number LIMIT 100",
            (room, after),
        ).fetchall()


def store(room: str, message: Message) -> bool:
    """Store a message. Returns whether it is new."""
    with database() as connection:
        row = (room, message.id, message.text)
        return connection.execute("INSERT OR IGNORE INTO messages (room, id, text) VALUES (?, ?, ?)", row).rowcount > 0


async def stream(room: str, last: int) -> AsyncIterator[str]:
    """The stream that the browser reads. It subscribes before it asks the database, so it misses no message."""
    yield "retry: 1000\n\n"
    try:
        async with client.subscribe(f"room/{room}") as events:
            while True:
                while found := await asyncio.to_thread(messages, room, last):
                    for number, id, text in found:
                        yield f"id: {number}\ndata: {json.dumps({'id': id, 'text': text})}\n\n"
                        last = number
                if await events.next(SILENT_S) is None:
                    yield ": alive\n\n"
    except td.RequestEnded:  # the worker drains: the browser connects to another worker at once
        yield "retry: 0\n\n"


@app.get("/rooms/{room}")
async def read(room: str, last_event_id: Annotated[int, Header()] = 0) -> StreamingResponse:
    return StreamingResponse(stream(room, last_event_id), media_type="text/event-stream")


@app.post("/rooms/{room}")
async def post(room: str, message: Message) -> Response:
    """Store the row first, then fire the event: so a woken reader finds the row."""
    is_new = await asyncio.to_thread(store, room, message)
    client.fire(f"room/{room}")  # also for a repeated post: the worker of the first post may have died before this line
    return Response(status_code=201 if is_new else 200)


@app.get("/pid", response_class=PlainTextResponse)
async def pid() -> str:
    return str(os.getpid())


application = ASGI(app, client)
