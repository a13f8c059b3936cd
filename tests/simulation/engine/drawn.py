"""Random numbers of the system. The simulation draws them from the seed, so a seed takes the same steps again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch
from uuid import UUID

from timerd.clients import sessions
from timerd_client.groups import commands
from timerd_client.link import surface


class Secrets:
    """Stands for the module `secrets`."""

    def __init__(self, rng: Random) -> None:
        self.token_bytes = rng.randbytes


@contextmanager
def drawn_from(rng: Random, seed: int) -> Iterator[None]:
    """Draw sessions and ids from the seed, and turn off the daemon's log.

    An id decides into which chain of a table it falls, and so how much of a turn's bound a lookup of the id takes.
    """
    log = logging.getLogger("timerd")
    disabled, log.disabled = log.disabled, True
    ids = Random(f"ids {seed}")

    def uuid4() -> UUID:
        return UUID(int=ids.getrandbits(128))

    try:
        with (
            patch.object(sessions, "secrets", Secrets(rng)),
            patch.object(commands, "uuid4", uuid4),
            patch.object(surface, "uuid4", uuid4),
        ):
            yield
    finally:
        log.disabled = disabled
