"""examples/fastapi_events: four workers. Under load, one of them is killed, and then the daemon."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from support.real.trees import ROOT
from support.web.chatters import ALL, Chat, Reader
from support.web.servers import Server
from support.web.streams import EventSource


class Stream(Reader):
    """Reads a room as an EventSource does."""

    port = 0

    def run(self) -> None:
        source = EventSource(self.port, f"/rooms/{self.room}", 4 * PATIENCE_S)
        while len(self.ids) < ALL and not self._chat.stopped:
            for sent in source.connect():
                if sent.data:
                    self.ids.append(json.loads(sent.data)["id"])
                if len(self.ids) >= ALL:
                    break
            threading.Event().wait(0.02)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_each_stream_has_all_messages_in_order_when_a_worker_and_the_daemon_are_killed_under_load(
    make_daemon: Callable[..., Daemon], runtime_dir: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = make_daemon()
    directory = runtime_dir / "app"
    shutil.copytree(ROOT / "examples/fastapi_events", directory)
    with Server.uvicorn("app:application", directory, EVENTS_SILENT_S="1") as server:
        monkeypatch.setattr(Stream, "port", server.port)
        with Chat(server.port, seed, Stream) as chat:
            chat.wait_sent(0.2)
            server.busiest().kill()
            chat.wait_sent(0.4)
            daemon.kill()
            chat.wait_sent(0.6)
            daemon.start()
            chat.wait()
            chat.check()
            assert 500 not in chat.statuses, f"{chat.statuses}\n{server.log}"
