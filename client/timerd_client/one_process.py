"""Objects that belong to one process: they cannot be pickled, and the error says what to send instead."""

from __future__ import annotations

from typing import Any, ClassVar, Never


def public_name(made: object) -> str:
    """The public name of an object's class: Operation, for a ThreadedOperation as for an AioOperation."""
    return type(made).__name__.removeprefix("Threaded").removeprefix("Aio")


class OneProcess:
    """A base of objects that cannot be pickled or copied. The error names the object's class, not one of its fields."""

    __slots__ = ()
    IN_PLACE: ClassVar[str]
    """The end of the message: what to send to another process instead."""

    def __reduce__(self) -> Never:
        what = public_name(self)
        raise TypeError(f"{what} belongs to one process, and cannot be pickled or copied: {self.IN_PLACE}")

    def __reduce_ex__(self, protocol: Any) -> Never:
        self.__reduce__()
