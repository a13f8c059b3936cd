"""Requests and answers as Python objects: kio reads and writes every version of every API.

    api = api_of(key=1, version=12)            # Fetch
    request = api.read(frame)                  # the header and the body
    answer = api.make("FetchResponse", ...)    # a field that this version does not have is left out
    api.write(request.correlation_id, answer)

A field has the name that kio gives it: the name of Kafka's message definition, as Python spells it.
"""

from __future__ import annotations

import datetime
import io
import struct
from dataclasses import fields
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer

from timerd_kafka.wire.guard import check

START = struct.Struct(">hhi")  # of each request: API key, version, correlation id


class BadFrame(Exception):
    """A frame that is not a request that this broker can read: it is cut, or of another shape."""


class UnknownApi(BadFrame):
    """A request of an API, or of a version, that this broker does not have."""


class Request(NamedTuple):
    """A request: the fields of its header, and its body, an object of kio."""

    correlation_id: int
    client_id: str
    body: Any


class Api:
    """One API at one version."""

    def __init__(self, key: int, version: int) -> None:
        request, response = load_request_schema(key, version), load_response_schema(key, version)
        self.key, self.version = key, version
        self.name = request.__name__.removesuffix("Request")
        self._request, self.response = request, response
        self._header = entity_reader(request.__header_schema__)
        self._body = entity_reader(request)
        self._response_module: ModuleType = import_module(response.__module__)
        self._response_header: Any = response.__header_schema__
        self._write_header = entity_writer(response.__header_schema__)
        self._write = entity_writer(response)
        self._kinds: dict[str, tuple[Any, frozenset[str]]] = {}

    def __repr__(self) -> str:
        return f"{self.name} v{self.version}"

    def read(self, frame: bytes) -> Request:
        """The request in a frame. Raises BadFrame."""
        try:
            check(self._request.__header_schema__, frame, 0)
            header, size = self._header(frame, 0)
            check(self._request, frame, size)
            body, _ = self._body(frame, size)  # bytes after the body are ignored, as in Kafka: librdkafka sends some
        except Exception as error:  # kio raises many kinds of errors: its own, and those of struct, enum and str
            raise BadFrame(f"{self!r}: {type(error).__name__}: {error}") from error
        return Request(header.correlation_id, header.client_id or "", body)

    def make(self, kind: str, **given: Any) -> Any:
        """An object of the answer, of a kind such as "PartitionData". Fields that this version lacks are left out."""
        made = self._kinds.get(kind)
        if made is None:
            found = getattr(self._response_module, kind)
            made = self._kinds[kind] = found, frozenset(field.name for field in fields(found))
        found, names = made
        return found(**{name: value for name, value in given.items() if name in names})

    def has(self, kind: str, field: str | None = None) -> bool:
        """Whether this version has objects of this kind, and with `field` whether they have this field."""
        found = getattr(self._response_module, kind, None)
        return found is not None and (field is None or any(one.name == field for one in fields(found)))

    def write(self, correlation_id: int, answer: Any) -> bytes:
        """The frame of an answer, with its size in front."""
        header = self._response_header(correlation_id=correlation_id)
        return framed((self._write_header, header), (self._write, answer))


class Question:
    """One API at one version, for requests to a broker: by a follower, or by tests."""

    def __init__(self, key: int, version: int) -> None:
        self.request, response = load_request_schema(key, version), load_response_schema(key, version)
        self._key, self._version = key, version
        self.module: Any = import_module(self.request.__module__)
        self._header: Any = self.request.__header_schema__
        self._write_header, self._write = entity_writer(self._header), entity_writer(self.request)
        self._read_header, self._read = entity_reader(response.__header_schema__), entity_reader(response)

    def write(self, correlation_id: int, client_id: str, request: Any) -> bytes:
        """The frame of a request, with its size in front."""
        header = self._header(
            request_api_key=self._key,
            request_api_version=self._version,
            correlation_id=correlation_id,
            client_id=client_id,
        )
        return framed((self._write_header, header), (self._write, request))

    def read(self, frame: bytes) -> Any:
        """The answer in a frame."""
        _, size = self._read_header(frame, 0)
        return self._read(frame, size)[0]


def framed(*parts: tuple[Any, Any]) -> bytes:
    """The frame of these (writer, object) parts, with its size in front."""
    buffer = io.BytesIO(b"\0\0\0\0")
    buffer.seek(4)
    for write, part in parts:
        write(buffer, part)
    frame = buffer.getbuffer()
    frame[:4] = (len(frame) - 4).to_bytes(4)
    return bytes(frame)


@cache
def api_of(key: int, version: int) -> Api:
    """The API of this key at this version. Raises kio's UnknownAPIKey or UnknownEntity."""
    return Api(key, version)


@cache
def versions_of(name: str) -> range:
    """The versions of an API, such as "fetch", that kio knows. This broker supports all of them."""
    known = sorted(schema_name_map[name])
    return range(known[0], known[-1] + 1)


def milliseconds(value: float) -> datetime.timedelta:
    """Seconds as answers have them: in whole milliseconds."""
    return datetime.timedelta(milliseconds=round(value * 1000))
