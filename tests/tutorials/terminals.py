"""Plays the terminals of a tutorial: its files are written, its commands run, and their output is compared.

A file of a page is a fenced block whose first line is a comment with the file's name. A block ```console is a terminal:

    # terminal 1                       its name. Terminals run side by side
    $ python wait.py inbox/7 60        a command. The earlier command of this terminal must have ended
    process 4711 waits for inbox/7     its output, which is awaited. A later block of the terminal goes on with it
    ...                                any lines here, and between the further lines of this block
    ^C                                 SIGINT to the command, which then ends

A number from 4700 to 4799 on a page stands for a pid, and means the same process everywhere, also in later commands.
So does a mark. Dates, times and durations stand for any others. Runs of spaces are equal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from support.real.daemons import SMALL_BY_ENVIRONMENT
from support.real.patience import PATIENCE_S, eventually

BLOCK = re.compile(r"^```(\w+)\n((?:# |<!-- )(\S+(?: \S+)*?)(?: -->)?\n.*?)^```$", re.MULTILINE | re.DOTALL)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SET_UP = ("python3 -m venv ", ". env/", "pip install ")  # the environment of the tests has all that
DURATION = r"\d+(?:\.\d+)? (?:ns|us|ms|s|min|h|d)\b"
PID, MARK = r"\b47\d\d\b", r"\b[0-9a-f]{16}-\d+\b"
# A text of a page, and a pattern for the text that a reader sees in its place.
PLACEHOLDERS = {
    MARK: MARK,
    r"\d{4}-\d\d-\d\d": r"\d{4}-\d\d-\d\d",
    r"\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4}": r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4}",  # of HTTP
    r"\d\d:\d\d:\d\d(?:[.,]\d+)?": r"\d\d:\d\d:\d\d(?:[.,]\d+)?",
    r"\bmissed \d+": r"missed \d+",
    rf"\b{DURATION}(?: {DURATION})?": rf"{DURATION}(?: {DURATION})?",
    r"\b\d\.\d\ds\b": r"\d+\.\d\ds(?: \(.*\))?",  # of pytest
    r"/run/user/\d+/timerd": r"/\S+",
    r"/dev/shm/timerd-\S+": r"/dev/shm/timerd-\S+",
    r"\b\d:\d+\b": r"\d:\d+",  # a bucket of the wheel
    r" \.\.\.$": r".*",
    PID: r"\d+",
}
TOKEN = re.compile("|".join(f"({shown})" for shown in PLACEHOLDERS))
COLUMNS = 100  # of a terminal: `timerctl` cuts its tables in a narrower one
SHOWN_S = 3 * PATIENCE_S  # a line may be the first one of four workers that import a framework each
ENDS = {-signal.SIGKILL: "Killed", -signal.SIGTERM: "Terminated"}  # what a shell shows


class Block(NamedTuple):
    kind: str
    text: str  # with its first line, which has the name
    name: str


def blocks_of(page: str) -> list[Block]:
    """The files and the terminals of a page, in their order."""
    return [Block(*found) for found in BLOCK.findall(page)]


def files_of(page: str) -> dict[str, str]:
    """The last text of each file of a page."""
    return {block.name: block.text for block in blocks_of(page) if block.kind != "console"}


class Terminal:
    """A terminal: one command after the other, and the lines that it has shown."""

    def __init__(self, name: str, directory: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.shown: list[str] = []  # all lines
        self.lines: list[str] = []  # those that were not compared yet
        self.skips = False  # lines, until one is as on the page
        self.is_loose = False  # whether it skips further lines of this block
        self._directory = directory
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._reading: threading.Thread | None = None

    def run(self, command: str) -> None:
        ours, its = os.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self._directory,
            env=self._environment,
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        self._reading = threading.Thread(target=self._read, args=(ours,))
        self._reading.start()

    def _read(self, ours: int) -> None:
        rest = b""
        with open(ours, "rb", buffering=0) as shown, contextlib.suppress(OSError):  # EIO: the command has ended
            while data := shown.read(65536):
                *lines, rest = (rest + data).split(b"\n")
                self._show(*lines)
        if rest:
            self._show(rest)

    def _show(self, *lines: bytes) -> None:
        for line in lines:
            self.shown.append(ESCAPE.sub("", line.decode()).rstrip())
            self.lines.append(self.shown[-1])

    def send(self, number: int) -> None:
        """Send a signal to the command and its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def next_line(self, wanted: str) -> str:
        """Wait for a line, and take it."""
        eventually(
            lambda: self.lines or self.has_ended(), f"{self.name}: it does not show {wanted}: {self.shown}", SHOWN_S
        )
        if not self.lines:
            self._read_rest()
        assert self.lines, f"{self.name}: it has ended and does not show {wanted}: {self.shown}"
        return self.lines.pop(0)

    def _read_rest(self) -> None:
        assert self._reading is not None, f"{self.name}: no command has run"
        self._reading.join(PATIENCE_S)
        assert not self._reading.is_alive(), f"{self.name}: the command has left a process behind: {self.shown}"

    def end(self) -> list[str]:
        """Wait for the command's end. Returns the lines that nobody has compared, without empty ones."""
        if self._process is not None:
            eventually(self.has_ended, f"{self.name}: {self._process.args!r} does not end: {self.lines}")
            self._read_rest()
            if (text := ENDS.get(self._process.returncode)) is not None:
                self.lines.append(text)
        left = [] if self.skips else [line for line in self.lines if line]
        self.lines, self.skips, self._process = [], False, None
        return left


class Player:
    """A reader, who does all that a page says: `with Player(directory) as player: player.play(page)`."""

    def __init__(
        self,
        directory: Path,
        *,
        replace: Mapping[str, str] | None = None,
        after: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        """`replace` has texts of the page, such as a port, and what stands in their place here. `after` has commands of
        the page, and what to wait for after each: a reader needs longer to go on to the next terminal.
        """
        self._directory = directory
        self._replace = replace or {}
        self._after = after or {}
        self.terminals: dict[str, Terminal] = {}
        self._bound: dict[str, str] = {}
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")},
            **SMALL_BY_ENVIRONMENT,
            "HOME": str(directory),  # some versions of gunicorn keep a socket there
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "dumb",
        }

    def play(self, page: str) -> None:
        """Play the whole page. Each terminal shows exactly what the page shows."""
        for block in blocks_of(page):
            if block.kind != "console":
                (self._directory / block.name).write_text(self._replaced(block.text))
                continue
            new = Terminal(block.name, self._directory, self._environment)
            terminal = self.terminals.setdefault(block.name, new)
            terminal.is_loose = False
            for line in block.text.splitlines()[1:]:
                self._play(terminal, self._replaced(line))
                self._after.get(line.removeprefix("$ "), bool)()
        for terminal in self.terminals.values():
            self._end(terminal)

    def _play(self, terminal: Terminal, line: str) -> None:
        if line.startswith("$ "):
            self._end(terminal)
            command = TOKEN.sub(lambda found: self._bound.get(found[0], found[0]), line[2:])
            if not command.startswith(SET_UP):
                terminal.run(command)
        elif line == "^C":
            terminal.send(signal.SIGINT)
            eventually(terminal.has_ended, f"{terminal.name}: Ctrl-C ends nothing: {terminal.lines}")
        elif line == "...":
            terminal.skips = terminal.is_loose = True
        elif line in ENDS.values():
            left = terminal.end()
            assert left == [line], f"{terminal.name}: {left} instead of {line}"
        else:
            self._compare(terminal, line)

    def _compare(self, terminal: Terminal, line: str) -> None:
        """Take the terminal's lines up to the one that the page shows."""
        pattern, names = self._pattern(line)
        while (found := pattern.fullmatch((shown := terminal.next_line(line)).strip())) is None:
            assert terminal.skips, f"{terminal.name}: it shows\n{shown}\ninstead of\n{line}"
        terminal.skips = terminal.is_loose
        for name, placeholder in names.items():
            self._bound[placeholder] = found[name]

    def _pattern(self, line: str) -> tuple[re.Pattern[str], dict[str, str]]:
        """The pattern of a line, and the placeholders that it binds, by the names of their groups."""
        text, names, end = "", dict[str, str](), 0
        for token in TOKEN.finditer(line := line.strip()):
            text += spaced(line[end : token.start()])
            end = token.end()
            shown = list(PLACEHOLDERS)[int(token.lastindex or 0) - 1]
            if shown not in (PID, MARK):
                text += PLACEHOLDERS[shown]
            elif token[0] in self._bound:
                text += re.escape(self._bound[token[0]])
            elif (known := {of: name for name, of in names.items()}.get(token[0])) is not None:
                text += f"(?P={known})"
            else:
                names[name := f"bound{len(names)}"] = token[0]
                text += f"(?P<{name}>{PLACEHOLDERS[shown]})"
        return re.compile(text + spaced(line[end:])), names

    def _end(self, terminal: Terminal) -> None:
        left = terminal.end()
        assert not left, f"{terminal.name}: the page does not show {left}"

    def _replaced(self, text: str) -> str:
        for ours, its in self._replace.items():
            text = text.replace(ours, its)
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        running = [terminal for terminal in self.terminals.values() if not terminal.has_ended()]
        for terminal in running:
            terminal.send(signal.SIGKILL)
        for terminal in running:
            terminal.end()


def spaced(text: str) -> str:
    """A pattern of this text, in which runs of spaces are equal."""
    return r"\s+".join(re.escape(part) for part in re.split(r"\s+", text))
