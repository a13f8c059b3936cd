"""The clients' processes, as the acceptance sees them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from common import Failed

HERE = Path(__file__).resolve().parent
SUPPORT = HERE.parent.parent / "tests" / "support" / "kafka"
END_S = 30.0
_numbers = itertools.count(1)


class Peer:
    """One client in a process of its own. What it says is in `said`."""

    program = "peer.py"

    def __init__(self, role: str, client: str, bootstrap: str, **plan: Any) -> None:
        self.client, self.said = client, list[dict[str, Any]]()
        number = next(_numbers)
        self._scratch = tempfile.TemporaryDirectory(prefix="peer-")
        self._result = Path(self._scratch.name, "result.json")
        self._log = Path(self._scratch.name, "log")
        asked = {
            **{"role": role, "client": client, "bootstrap": bootstrap, "name": f"{role}-{client}-{number}"},
            **{"result": str(self._result), **plan},
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / self.program), json.dumps(asked)],
                env={**os.environ, "PYTHONPATH": str(SUPPORT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the acceptance
            )
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def log(self) -> str:
        """What it has said on its error output."""
        return self._log.read_text(errors="replace")[-2_000:]

    def last(self, key: str) -> dict[str, Any] | None:
        """The last line that it said with this key."""
        return next((line for line in reversed(self.said) if key in line), None)

    def ready(self) -> None:
        """Wait until it is connected. Raises Failed."""
        self._await(lambda: self.last("ready") is not None, END_S)

    def _await(self, condition: Callable[[], bool], patience: float) -> None:
        end = time.monotonic() + patience
        while not condition():
            if self.process.poll() is not None and not condition():
                raise Failed(f"the process of {self.client} has ended with {self.process.returncode}:\n{self.log}")
            if time.monotonic() > end:
                raise Failed(f"the process of {self.client} does not come to it in {patience:g} s:\n{self.log}")
            time.sleep(0.005)

    def stop(self) -> None:
        """Have it leave as a client should."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(b"stop\n")
            self.process.stdin.flush()

    def kill(self) -> float:
        """SIGKILL; when that was."""
        self.process.kill()
        self.process.wait()
        return time.monotonic()

    def result(self, patience: float = 600.0) -> dict[str, Any]:
        """Wait for its end, and return what it has done. Raises Failed."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise Failed(f"the process of {self.client} has not ended in {patience:g} s:\n{self.log}") from None
        if self.process.returncode or not self._result.exists():
            raise Failed(f"the process of {self.client} has ended with {self.process.returncode}:\n{self.log}")
        found: dict[str, Any] = json.loads(self._result.read_text())
        return found

    def end(self) -> None:
        """End its process, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join(5.0)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._scratch.cleanup()


class RawPeer(Peer):
    """A raw client in a process of its own."""

    program = "raw_peer.py"

    def __init__(self, role: str, **plan: Any) -> None:
        super().__init__(role, "raw", "", **plan)

    def result(self, patience: float = 600.0) -> dict[str, Any]:
        """The same. A thread of its that has broken is no result."""
        found = super().result(patience)
        if "Traceback" in self.log:
            raise Failed(f"a thread of the raw client has ended:\n{self.log}")
        return found


@contextlib.contextmanager
def several(*made: Callable[[], Peer]) -> Iterator[list[Peer]]:
    """Several clients at once."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(make()) for make in made]


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGESIZE")
