"""timerctl: the command line that looks at an instance of timerd, and acts on it.

Commands that only look (stats, ops, explain, keys, calls, clients, errors) map the arena read-only, and need no daemon.
If the daemon is not running, they print a line above their result. `check` asks a running daemon for a copy of its
arena, and `journal` reads files. Commands that act (register, fire, ...) are ordinary clients. `install-units` and
`completion` need no instance. Each module has one command, or a few that are alike, and its `add` declares them. Each
command has a function that takes the parsed arguments, runs the command, and returns an exit status.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from timerd_shm.declare.errors import TimerdError
from timerd_shm.host.access import in_words
from timerd_shm.host.version import Version

from .act import calls as act_on_calls
from .act import destroy, events, ids, ping, register, worker
from .exits import STATUSES, Exit, exit_of
from .journal import command as journal
from .live import exporter, monitor, subscribe, top
from .load import command as load
from .look import calls, check, clients, errors, explain, keys, ops, stats
from .setup import completion, units
from .web import command as web

EPILOG = f"""\
exit status:
{STATUSES}
examples:
  timerctl stats --watch                   counters and latencies, every second
  timerctl ops --due-within 5s             what expires within 5 s
  timerctl explain 7.1                     why it is pending, and since when
  timerctl register job/7 --timeout 1m     wait at the shell for an event
  timerctl fire job/7 --value done --wait  ... and complete it
  timerctl load --own --rate 20k           how fast, how late, and whether right
  timerctl worker tasks:calls              serve the handlers of named calls
  timerctl --instance test check           whether the arena is sound
  timerctl ping                            whether the daemon answers
  timerctl install-units --dry-run         units of systemd, and where they go

The instance is --instance, else $TIMERD_INSTANCE, else "default". If
$TIMERD_RUNTIME_DIR is set, the instance is looked for in that directory alone;
else in /run/timerd, /run/user/UID/timerd and /tmp/timerd-UID, and the first one
with a daemon is taken.
Files of another user are used only if root has chosen that user, or if
$TIMERD_DAEMON_USER names the user.
"""


class Parser(argparse.ArgumentParser):
    """Adds hints to errors: the nearest choice, the form of a value that begins with a hyphen, the command's help."""

    def error(self, message: str) -> NoReturn:
        option = re.fullmatch(r"argument (?:-\w/)?(--[\w-]+): expected one argument", message)
        if option:
            message += f"; a value that begins with '-' is written {option[1]}=VALUE"
        wrong, found, choices = message.partition(" (choose from ")
        if found:
            word = wrong.rpartition("invalid choice: ")[2].strip("'")
            near = difflib.get_close_matches(word, re.findall(r"[\w-]+", choices), 1)
            message += f": did you mean {near[0]!r}?" if near else ""
        if message.startswith("unrecognized arguments"):
            message += "; `timerctl COMMAND --help` lists what a command takes"
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    instance = "the instance (default: $TIMERD_INSTANCE, or 'default')"
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--instance", metavar="NAME", default=argparse.SUPPRESS, help=instance)
    whole = Parser(
        prog="timerctl",
        description="Look at a timerd instance in shared memory, and act on it as a client.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action=Version, nargs=0, help="print the version, and exit")
    whole.add_argument("--instance", metavar="NAME", default=None, help=instance)
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (
        stats,
        top,
        web,
        exporter,
        monitor,
        subscribe,
        ping,
        check,
        ops,
        explain,
        keys,
        clients,
        errors,
        register,
        events,
        ids,
        worker,
        journal,
        destroy,
        load,
    ):
        module.add(commands, common)
    act_on_calls.add(calls.add(commands, common), common)
    units.add(commands)
    completion.add(commands, whole)
    whole.set_defaults(json=False)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status (see `timerctl --help`)."""
    arguments = parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a key may have bytes that the terminal cannot encode
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except TimerdError as error:
        print(f"timerctl: {error}", file=sys.stderr)
        return exit_of(error)
    except BrokenPipeError:
        forget_output()  # the reader of the output has closed it (`timerctl ops | head`)
        return Exit.CUT_OFF  # not OK: the part of `timerctl journal audit | head` that was cut may have findings
    except OSError as error:  # for example: a disk that is full, or a file that this user may not open
        print(f"timerctl: {in_words(error)}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            forget_output()
        return Exit.PROBLEM
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def forget_output() -> None:
    """Drop the output that could not be written. Otherwise Python tries to write it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
