"""The answer to a command that has no operation of this client, and for which its caller does not wait."""

from __future__ import annotations

from typing import Any, Final

from timerd_shm.declare.errors import ErrorCode, OperationExistsError, TimerdError
from timerd_wire.refusals import Subject

from .link import Link
from .promise import Reply

_NOT_KNOWN: Final = (ErrorCode.UNAVAILABLE, ErrorCode.SESSION_GONE, ErrorCode.CLOSED)


class Receipt(Reply):
    """A refusal is logged, counted, and raised by the next flush, as that of `fire`. With "keep", EXISTS is none."""

    __slots__ = ()
    _link: Link

    def __init__(self, link: Link, subject: Subject) -> None:
        super().__init__(link, subject)

    def answer(self, value: Any, error: TimerdError | None = None) -> bool:
        kept = isinstance(error, OperationExistsError) and error.kept
        if error is not None and not kept and error.code not in _NOT_KNOWN:
            incoming = self._link.protocol.incoming
            incoming.count_refusal(error)
            incoming.complaints.append(f"{self._subject.kind} {self._subject.id!r} was refused: {error}")
        return super().answer(value, error)
