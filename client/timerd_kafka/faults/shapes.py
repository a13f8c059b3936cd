"""The requests and answers of each API: which topics and groups a request names, and where its answer has errors.

    Produce v9:  topic_data[].partition_data[]  is answered by  responses[].partition_responses[].error_code
    Heartbeat:   the error stands at the top of the answer

A request is divided into the parts that a fault meets, which get the error, and the rest, which is carried out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_schema_field_type,
    is_optional,
)

from timerd_kafka.cluster.catalog import Catalog
from timerd_kafka.wire.codec import Api

MESSAGE = "a fault that was set on demand"
TOPIC_RESOURCE, GROUP_KEY = 2, 0  # the resource type of topics, and the key type of groups (FindCoordinator)
NEUTRAL: dict[str, Any] = {
    **{"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None, "datetime_i64": None},
    **dict.fromkeys(("timedelta_i32", "timedelta_i64"), datetime.timedelta()),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "float64"), -1),
}
# The fields that an answer takes from its request, and the names of these fields in requests.
COPIED: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("name", "topic", "topic_id", "index", "group_id", "key", "member_id")},
    **{name: (name,) for name in ("group_instance_id", "resource_type", "resource_name")},
    "partition_index": ("partition_index", "partition"),
}
# A request's array may have mere names or numbers, such as topic_names. These fields of the answer get them.
ALONE = {"name", "group_id", "key", "partition_index"}
# The arrays of requests, and the kind of their elements. An element is a name or a number, or it is an object,
# whose name or number is in a field of NAMED_BY. A topic may have its topic_id instead.
NOUNS = {
    **dict.fromkeys(("topic_data", "topics", "topic_names", "resources"), "topic"),
    **dict.fromkeys(("partition_data", "partitions", "partition_indexes"), "partition"),
    **dict.fromkeys(("groups", "groups_names", "coordinator_keys"), "group"),
}
NAMED_BY = {
    "topic": ("name", "topic", "resource_name"),
    "partition": ("index", "partition_index", "partition"),
    "group": ("group_id",),
}
# Errors of the whole request. Other errors stand at the innermost parts (partitions, topics, groups), if the request
# has parts, and Shape.is_outer is False.
OF_REQUESTS = {
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
    ErrorCode.rebootstrap_required,
}

Where = Mapping[str, str | int | None]  # the "topic", "partition" and "group" of a part, as far as the part has them


class Shape(NamedTuple):
    """The names that a fault may have, and pairs of arrays: an array of the request, and the array that answers it."""

    names: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    is_outer: bool = False  # the error stands at the outermost place, as Kafka's own errors of the group


_PARTITIONS = (("topics", "topics"), ("partitions", "partitions"))
_GROUP = Shape(("group",))
SHAPES: dict[str, Shape] = {
    "Produce": Shape(("topic", "partition"), (("topic_data", "responses"), ("partition_data", "partition_responses"))),
    "Fetch": Shape(("topic", "partition"), (("topics", "responses"), ("partitions", "partitions"))),
    "ListOffsets": Shape(("topic", "partition"), _PARTITIONS),
    "Metadata": Shape(("topic",), (("topics", "topics"),)),
    "OffsetCommit": Shape(("topic", "partition", "group"), _PARTITIONS),
    "OffsetFetch": Shape(
        ("topic", "partition", "group"),
        (("groups", "groups"), ("topics", "topics"), ("partition_indexes", "partitions")),
        is_outer=True,
    ),
    "FindCoordinator": Shape(("group",), (("coordinator_keys", "coordinators"),)),
    "JoinGroup": _GROUP,
    "Heartbeat": _GROUP,
    "LeaveGroup": _GROUP,
    "SyncGroup": _GROUP,
    "ConsumerGroupHeartbeat": _GROUP,
    "DescribeGroups": Shape(("group",), (("groups", "groups"),)),
    "ListGroups": Shape(()),
    "ApiVersions": Shape(()),
    "CreateTopics": Shape(("topic",), (("topics", "topics"),)),
    "DeleteTopics": Shape(("topic",), (("topic_names", "responses"), ("topics", "responses"))),
    "DeleteRecords": Shape(("topic", "partition"), _PARTITIONS),
    "InitProducerId": Shape(()),
    "CreatePartitions": Shape(("topic",), (("topics", "results"),)),
    "DescribeConfigs": Shape(("topic",), (("resources", "results"),)),
    "AlterConfigs": Shape(("topic",), (("resources", "responses"),)),
    "IncrementalAlterConfigs": Shape(("topic",), (("resources", "responses"),)),
    "DeleteGroups": Shape(("group",), (("groups_names", "results"),)),
}


class Form:
    """The form of one request: its shape. The catalog has the topics that it names by id, or asks for without names."""

    def __init__(self, api: Api, catalog: Catalog) -> None:
        self._api, self._catalog, self._shape = api, catalog, SHAPES[api.name]

    def parts(self, asked: Any, where: Where | None = None) -> Iterator[Where]:
        """The parts that a request names, outer ones included."""
        here = self._top(asked) if where is None else where
        yield here
        for name in dict(self._shape.pairs):
            for element in self._elements(asked, name):
                yield from self.parts(element, self._within(here, name, element))

    def _elements(self, asked: Any, name: str) -> Iterable[Any]:
        """The elements of a request's array. Metadata without an array (v0: with an empty one) asks for all topics."""
        if not hasattr(asked, name):
            return ()
        found: Iterable[Any] | None = getattr(asked, name)
        if self._api.name == "Metadata" and (found is None or (not found and self._api.version == 0)):
            return tuple(self._catalog.by_name)
        return found or ()

    def has_place(self, asked: Any, error: ErrorCode, meets: Callable[[Where], bool]) -> bool:
        """Whether a part that `meets` selects has a place for the error: a request may name no topic at all."""
        if self._api.name != "Metadata":
            return self.divide(asked, error, meets)[1] is not None
        parts = list(self.parts(asked))
        return any(map(meets, parts[1:] if parts[1:] or not has(self._api.response, "error_code") else parts))

    def divide(self, asked: Any, error: ErrorCode, meets: Callable[[Where], bool]) -> tuple[Any, Any]:
        """The rest of a request, and the answer with the error for the parts that `meets` selects; None if empty."""
        kind = self._api.response
        has_place = has(kind, "error_code")
        if has_place and (self._shape.is_outer or error in OF_REQUESTS):
            is_met = any(map(meets, self.parts(asked)))
            return (None, filled(kind, asked, error)) if is_met else (asked, None)
        return self._divide(kind, asked, error, meets, self._top(asked))

    def _divide(
        self, kind: Any, asked: Any, error: ErrorCode, meets: Callable[[Where], bool], where: Where
    ) -> tuple[Any, Any]:
        pair = next((pair for pair in self._shape.pairs if hasattr(asked, pair[0]) and has(kind, pair[1])), None)
        if pair is None or (self._shape.is_outer and has(kind, "error_code")):
            is_met = any(map(meets, self.parts(asked, where)))
            return (None, filled(kind, asked, error)) if is_met else (asked, None)
        inner = element_kind(kind, pair[1])
        divided = [
            self._divide(inner, element, error, meets, self._within(where, pair[0], element))
            for element in getattr(asked, pair[0]) or ()
        ]
        rest = tuple(one for one, _ in divided if one is not None)
        failed = tuple(one for _, one in divided if one is not None)
        return (
            replace(asked, **{pair[0]: rest}) if rest or not failed else None,
            filled(kind, asked, ErrorCode.none, **{pair[1]: failed}) if failed else None,
        )

    def merge(self, answer: Any, failed: Any) -> Any:
        """The answer of the rest, with the answer of the failed parts in it.

        A request may name a topic in several entries, and a partition twice. The answer has each partition as often.
        """
        name = next(name for _, name in self._shape.pairs if hasattr(answer, name))
        merged = list(getattr(answer, name))
        places = {identity(one): place for place, one in enumerate(merged)}
        for one in getattr(failed, name):
            place = None if hasattr(one, "error_code") else places.get(identity(one))
            if place is None:
                merged.append(one)
            else:
                merged[place] = self.merge(merged[place], one)
        return replace(answer, **{name: tuple(merged)})

    def _top(self, asked: Any) -> Where:
        if getattr(asked, "key_type", GROUP_KEY) != GROUP_KEY:
            return {}
        group = getattr(asked, "group_id", getattr(asked, "key", None))
        return {} if group is None else {"group": group}

    def _within(self, where: Where, array: str, element: Any) -> Where:
        noun = NOUNS[array]
        if isinstance(element, str | int):
            return {**where, noun: element}
        if getattr(element, "resource_type", TOPIC_RESOURCE) != TOPIC_RESOURCE:
            return where
        value = next((found for name in NAMED_BY[noun] if (found := getattr(element, name, None)) is not None), None)
        if value is None and getattr(element, "topic_id", None) is not None:
            topic = self._catalog.by_id.get(element.topic_id)
            value = topic.name if topic else None
        return {**where, noun: value}


def has(kind: Any, name: str) -> bool:
    """Whether a class of kio has a field."""
    return any(field.name == name for field in fields(kind))


def element_kind(kind: Any, name: str) -> Any:
    """The class of an array's elements."""
    found = classify_field(next(field for field in fields(kind) if field.name == name))
    assert isinstance(found, EntityTupleField)
    return found.type_


def identity(part: Any) -> tuple[Any, ...]:
    """The fields that tell a part of an answer from the others."""
    return tuple(getattr(part, name, None) for name in COPIED)


def filled(kind: Any, asked: Any, error: ErrorCode, **given: Any) -> Any:
    """A part of an answer with this error. Its other fields have `given`, or the request's values, or neutral ones."""
    made = {}
    for field in fields(kind):
        name, of = field.name, classify_field(field)
        if name in given:
            made[name] = given[name]
        elif name == "error_code":
            made[name] = error
        elif name == "error_message":
            made[name] = MESSAGE if error else None
        elif name in ALONE and isinstance(asked, str | int):
            made[name] = asked
        elif found := [getattr(asked, one) for one in COPIED.get(name, ()) if hasattr(asked, one)]:
            made[name] = "" if found[0] is None and not is_optional(field) else found[0]
        elif field.default is not MISSING:
            made[name] = field.default
        elif isinstance(of, EntityTupleField | PrimitiveTupleField):
            made[name] = ()
        elif isinstance(of, EntityField):
            made[name] = filled(of.type_, None, ErrorCode.none)
        else:
            made[name] = None if is_optional(field) and name != "records" else NEUTRAL[get_schema_field_type(field)]
    return kind(**made)
