"""timerctl web: declares the command, and serves until Ctrl-C."""

from __future__ import annotations

import argparse
from typing import Any

from timerctl.exits import Exit, UsageError
from timerctl.instance import paths_of
from timerctl.listing import declare_act
from timerctl.live.samples import Samples
from timerctl.show.text import whole

from .acts import act
from .answers import Answers
from .feed import Feed
from .server import Server

EPILOG = """\
The page is for a browser of this host: it is served on 127.0.0.1 alone, and its
address has a token that is made anew at each start. Everybody who has the
address may see what this user may see. To see the page of another host: ssh -L 8080:127.0.0.1:8080
HOST, and `timerctl web --port 8080` there.

Memory is read only while a page is open. The page works on a dead daemon, too.

examples:
  timerctl web
  timerctl web --port 8080 --act
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare_act(
        commands,
        [common],
        "web",
        "a page for the browser: is all well, what waits, who does what",
        "It only looks, unless --act is given.",
        EPILOG,
        prints=False,
    )
    command.add_argument("--port", metavar="N", type=whole(0, 65_535), default=0, help="the port (default: a free one)")
    command.add_argument("--act", action="store_true", help="let the page retry and drop dead letters, cancel calls")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    paths = paths_of(arguments)
    Samples(paths).take()  # raises what is wrong with the instance
    feed = Feed(paths)
    acts = (lambda wish: act(paths, arguments.instance, wish)) if arguments.act else None
    try:
        server = Server(arguments.port, feed, Answers(paths, feed, arguments.instance), acts)
    except OSError as error:
        raise UsageError(
            f"port {arguments.port} of 127.0.0.1 cannot be used: {error.strerror}: give another --port"
        ) from None
    print(f"The page of {paths.instance!r} is at {server.url}\nCtrl-C ends it.", flush=True)
    with server:
        server.serve_forever()
    return Exit.OK
