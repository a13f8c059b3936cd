"""Who uses a link: a client and its purgatories. When the caller refers to none of them any more, the link may end."""

from __future__ import annotations

import weakref
from collections.abc import Callable


class Use:
    """What a client and its purgatories share, and nobody else refers to."""

    __slots__ = ("__weakref__",)


class Users:
    """Knows whether there are users still."""

    def __init__(self) -> None:
        self._use: weakref.ref[Use] | None = None

    def begin(self, on_end: Callable[[], None] | None = None) -> Use:
        """The caller keeps what is returned for as long as it uses the link. `on_end` is called in any thread."""
        made = Use()
        self._use = weakref.ref(made, None if on_end is None else lambda _: on_end())
        return made

    @property
    def are_gone(self) -> bool:
        """Whether there was a user, and is none any more."""
        return self._use is not None and self._use() is None
