"""The places of a test: they stand for /run/timerd and the other places, but lie in a directory of the test.

So neither the test nor a process that it starts meets a daemon of the user who runs the tests.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timerd_shm.host import places


class OwnPlaces:
    """The three places, which do not exist yet, and the code that gives them to another process.

    The directories that stand for /run and /run/user do not exist either. So no process, not even one of root, makes
    the first two places.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.roots = {
            "SYSTEM_PLACE": directory / "run/timerd",
            "SESSIONS": directory / "user",
            "TEMPORARY": directory / "tmp",
        }
        for name, path in self.roots.items():
            monkeypatch.setattr(places, name, path)
        monkeypatch.delenv(places.RUNTIME_DIR_VARIABLE, raising=False)
        uid = os.geteuid()
        self.system = directory / "run" / "timerd"
        self.session = directory / "user" / str(uid) / "timerd"
        self.temporary = directory / "tmp" / f"timerd-{uid}"
        self.temporary.parent.mkdir()
        self.prelude = "from pathlib import Path\nfrom timerd_shm.host import places\n" + "".join(
            f"places.{name} = Path({str(path)!r})\n" for name, path in self.roots.items()
        )

    @property
    def all(self) -> tuple[Path, Path, Path]:
        """The places in their order."""
        return self.system, self.session, self.temporary

    def log_in(self) -> None:
        """Make the directory that a login makes, in which the second place can be made."""
        self.session.parent.mkdir(parents=True, mode=0o700)
