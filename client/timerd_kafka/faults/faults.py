"""The rules of faults at one broker, and the faults that one request gets."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from timerd_kafka.cluster.catalog import Catalog
from timerd_kafka.faults.rules import ERRORS, OWN_CLIENT, Rule, count, count_file
from timerd_kafka.faults.shapes import Form
from timerd_kafka.wire.codec import Api, Request

log = logging.getLogger("timerd_kafka.faults")


class Fate(NamedTuple):
    """The faults of one request: none by default."""

    error: Rule | None = None  # parts of the request get its error, and are not carried out (except in Metadata)
    seconds: float = 0.0  # the answer goes out later
    is_cut: bool = False  # the connection is closed in the middle of the answer


class Faults:
    """The rules of one broker. Rules act in the order in which they were set."""

    def __init__(self, data: Path, broker: int, secret: str) -> None:
        self._data, self._broker, self._exempt = data, broker, (secret, OWN_CLIENT)
        self.rules: tuple[Rule, ...] = ()
        self._done: set[int] = set()

    def set(self, rules: Iterable[Rule]) -> None:
        """Replace the rules."""
        self.rules = tuple(rules)

    def fate(self, api: Api, request: Request, catalog: Catalog) -> Fate:
        """Count a request, and decide what happens to it. It gets one fault of each kind at most."""
        if request.client_id in self._exempt:
            return Fate()
        applied: dict[str, Rule] = {}
        form = Form(api, catalog)
        for rule in self.rules:
            if rule.fault not in applied and self._meets(rule, api, request, form) and self._is_due(rule):
                applied[rule.fault] = rule
        delay = applied.get("delay")
        return Fate(applied.get("fail"), (delay and delay.seconds) or 0.0, "cut" in applied)

    def _meets(self, rule: Rule, api: Api, request: Request, form: Form) -> bool:
        if rule.api != api.name or rule.number in self._done or rule.broker not in (None, self._broker):
            return False
        if rule.client_id not in (None, request.client_id):
            return False
        # An error needs a place in the answer: a request that names no topic may have none.
        if rule.fault == "fail":
            return form.has_place(request.body, ERRORS[rule.error or ""], rule.meets)
        return any(map(rule.meets, form.parts(request.body)))

    def _is_due(self, rule: Rule) -> bool:
        """Count a request that this rule meets. Returns whether the request gets the fault."""
        try:
            number = count(count_file(self._data, rule))
        except OSError:  # a rule that was cleared at this moment, or a full disk
            log.exception("a request cannot be counted, and gets no fault: %s", rule)
            return False
        if number >= rule.last:
            self._done.add(rule.number)
        return rule.after < number <= rule.last


def metadata_with(answer: Any, rule: Rule) -> Any:
    """An answer of Metadata with a rule's error, at each topic that the rule meets.

    An error of the whole request stands at the top of the answer, and so does any error if the answer has no topic.
    """
    error = ERRORS[rule.error or ""]
    if hasattr(answer, "error_code") and (error is ErrorCode.rebootstrap_required or not answer.topics):
        return replace(answer, error_code=error)
    return replace(
        answer,
        topics=tuple(
            replace(topic, error_code=error, partitions=()) if rule.meets({"topic": topic.name}) else topic
            for topic in answer.topics
        ),
    )
