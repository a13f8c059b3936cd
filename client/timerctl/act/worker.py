"""timerctl worker: serve a registry of named calls, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from timerctl.exits import Exit, UsageError
from timerctl.instance import NS
from timerctl.listing import declare_act
from timerctl.show.text import duration_ns, whole
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.limits import TAKEOVER_MS_MAX, TAKEOVER_MS_MIN

if TYPE_CHECKING:
    from timerd_client import Calls

GRACE_S: Final = 30.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
logger = logging.getLogger("timerctl.worker")

ABOUT = """\
CALLS is MODULE:NAME, as for gunicorn: a td.Calls() in a module that is imported
from the current directory. Start as many workers as you like; each call goes to
one of them. Without a daemon a worker waits for one.

Handlers run in threads. If one of them is a coroutine function, or with --aio,
all handlers run in one event loop, and plain functions block this loop.

SIGTERM and SIGINT (Ctrl-C) end the worker: it takes no more calls, and waits
for the handlers that run. If a handler still runs after --grace, another worker
runs its call again. A second signal ends the worker at once.
"""
EPILOG = """\
example: tasks.py
  import timerd as td
  calls = td.Calls(group="workers")

  @calls.handler("remind", retries=3)
  def remind(call):
      print("remind", call.payload)

  @calls.every("cleanup", seconds=60)
  def cleanup(call):
      print("once a minute, in one worker")

  timerctl worker tasks:calls              serve them
  timerctl worker tasks:calls --at-once 8  up to 8 calls at once
  timerctl calls                           what comes next, and what has failed

exit status:
  0  ended by a signal, and every handler had returned
  1  a handler still ran after --grace, or the module cannot be imported
  2  the command line is wrong: no such module or name, no group
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare_act(
        commands, [common], "worker", "serve the handlers of named calls", ABOUT, EPILOG, prints=False
    )
    command.add_argument("calls", metavar="CALLS", help="MODULE:NAME; :calls may be left out")
    command.add_argument("--group", metavar="NAME", help="the group (default: that of the td.Calls())")
    command.add_argument(
        "--at-once",
        metavar="N",
        type=whole(1, 1000),
        help="calls at once (default: the largest concurrency=, in an event loop at least 16)",
    )
    command.add_argument("--aio", action="store_true", help="run all handlers in one event loop")
    command.add_argument(
        "--grace",
        metavar="TIME",
        type=duration_ns,
        default=round(GRACE_S * NS),
        help="how long handlers may take to end (default: 30s)",
    )
    command.add_argument(
        "--takeover",
        metavar="TIME",
        type=takeover,
        help="silence after which other workers get the calls of this process, even if it runs (default: 5m)",
    )
    command.set_defaults(run=run)


def takeover(text: str) -> float:
    """Type of an argument: a takeover, in seconds."""
    ms = duration_ns(text) / 1_000_000
    if not TAKEOVER_MS_MIN <= ms <= TAKEOVER_MS_MAX:
        limits = f"{TAKEOVER_MS_MIN // 1_000}s to {TAKEOVER_MS_MAX // 60_000}m"
        raise argparse.ArgumentTypeError(f"a takeover of {text} is not within {limits}")
    return ms / 1_000


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes. Returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s: %(message)s")
    calls = calls_of(arguments.calls)
    group = arguments.group or calls.group
    if group is None:
        raise UsageError("these calls belong to no group: give --group NAME, or td.Calls(group=NAME) in the module")
    if calls.group not in (None, group):
        raise UsageError(f"--group {group}, but the calls belong to group {calls.group!r}")
    if not len(calls):
        raise UsageError(f"{arguments.calls} has no handler: @calls.handler(NAME) or @calls.every(NAME, ...)")
    if arguments.aio or any(job.is_async for _, job in calls):
        return asyncio.run(serve_in_loop(calls, arguments, group))
    return serve_in_threads(calls, arguments, group)


def calls_of(text: str) -> Calls:
    """The registry that the command line names. Raises UsageError, and any error of the module itself."""
    from timerd_client import Calls

    module_name, _, name = text.partition(":")
    name = name or "calls"
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"there is no module {error.name!r} in {os.getcwd()} or on Python's path") from None
    except ValueError:
        raise UsageError(f"{text!r} is not MODULE:NAME") from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"there is no {name!r} in the module {module_name!r}: MODULE:NAME of a td.Calls()")
        found = getattr(found, part)
    if not isinstance(found, Calls):
        raise UsageError(f"{module_name}:{name} is {type(found).__name__}, and not a td.Calls()")
    return found


def serve_in_threads(calls: Calls, arguments: argparse.Namespace, group: str) -> int:
    """Serve until a signal comes. A pipe gives the signal's number, even if the signal comes right before the read."""
    from timerd_client import Client

    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    client = Client(arguments.instance, group=group, name="timerctl worker", takeover=arguments.takeover)
    client.serve(calls, at_once=arguments.at_once)
    say_begin(client, calls)
    say_end(signal_of(woken), arguments)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        client.close(timeout=arguments.grace / NS)
    except TimerdError as error:
        logger.warning("%s", error)
    return status_of(client)


def signal_of(woken: int) -> int:
    """The number of the first signal that ends a worker."""
    while (number := os.read(woken, 1)[0]) not in SIGNALS:
        pass
    return number


async def serve_in_loop(calls: Calls, arguments: argparse.Namespace, group: str) -> int:
    """Serve until a signal comes."""
    from timerd_client.aio import Client

    loop, came = asyncio.get_running_loop(), asyncio.Queue[int]()
    for number in SIGNALS:
        loop.add_signal_handler(number, came.put_nowait, number)
    client = Client(arguments.instance, group=group, name="timerctl worker", takeover=arguments.takeover)
    client.serve(calls, at_once=arguments.at_once)
    say_begin(client, calls)
    say_end(await came.get(), arguments)
    for number in SIGNALS:
        loop.remove_signal_handler(number)
    try:
        await client.close(timeout=arguments.grace / NS)
    except TimerdError as error:
        logger.warning("%s", error)
    return status_of(client)


def say_begin(client: Any, calls: Calls) -> None:
    names = ", ".join(name for name, _ in calls)
    logger.info("serves %s for group %r at instance %r", names, client.group, client.instance)


def say_end(number: int, arguments: argparse.Namespace) -> None:
    logger.info("%s: waits up to %g s for handlers", signal.Signals(number).name, arguments.grace / NS)


def status_of(client: Any) -> int:
    """The exit status of a worker whose client is closed."""
    left = client.calls_running
    logger.info("ended; calls that go to other workers: %d", left)
    return Exit.PROBLEM if left else Exit.OK
