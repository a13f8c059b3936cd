"""The images and the compose file of systemd/, played without Docker: the same lines, mounts, users and limits."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.real.images import Builder, Container, volume_in_memory
from support.real.patience import eventually
from support.real.trees import ROOT

USER = 990
pytestmark = [
    pytest.mark.long,
    pytest.mark.root("makes file systems and namespaces"),
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="apt-get install debootstrap"),
]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    directory = tmp_path_factory.mktemp("images")
    yield Builder(directory)
    shutil.rmtree(directory, ignore_errors=True)


def asked(url: str, body: Any = None) -> tuple[int, Any]:
    """The answer to a request: its status, and its JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
        return answer.status, json.loads(text) if text else None


def test_the_default_arena_fits_into_the_shared_memory_that_docker_gives(builder: Builder) -> None:
    with Container(builder.image("timerd"), builder.image("timerd").command, environment={}) as daemon:
        eventually(daemon.is_healthy, seconds=60)
        fill = "import timerd as td; c = td.connect(timeout=30); "
        fill += "print(sum(len(c.register_many([b'k'] * 10_000, timeout=600)) for _ in range(6)))"
        filled = daemon.run("python3", "-c", fill)
        assert (filled.stdout.strip(), filled.stderr) == ("60000", "")
        stats = json.loads(daemon.run("timerctl", "stats", "--json").stdout)
        assert stats["alive"]
        assert daemon.run("id", "-u").stdout.strip() == str(USER)
        assert "Traceback" not in daemon.stop()


def test_the_application_of_the_compose_file_answers_its_polls_through_a_kill_of_the_daemon(
    builder: Builder, tmp_path: Path, port: int
) -> None:
    compose = yaml.safe_load((ROOT / "systemd/compose.yaml").read_text())
    service, web_service = compose["services"]["timerd"], compose["services"]["web"]
    url = f"http://127.0.0.1:{port}/rooms/7"
    with ExitStack() as started:
        options = compose["volumes"]["timerd"]["driver_opts"]["o"]
        volume = started.enter_context(volume_in_memory(tmp_path / "volume", options))

        def start_daemon() -> Container:
            container = Container(
                builder.image("timerd"),
                service["command"],
                environment=service["environment"],
                volume=volume,
                files=service["ulimits"]["nofile"],
            )
            started.enter_context(container)
            eventually(container.is_healthy, seconds=60)
            return container

        daemon = start_daemon()
        image = builder.image("web")
        web = started.enter_context(
            Container(
                image,
                [*image.command[:-1], f"127.0.0.1:{port}"],
                environment=web_service["environment"],
                volume=volume,
                is_volume_read_only=True,
            )
        )
        eventually(lambda: is_served(port), seconds=60)
        assert asked(url, {"id": "1", "text": "hello"})[0] == 201
        assert [one["text"] for one in asked(f"{url}?after=0")[1]] == ["hello"]
        answers: list[Any] = []
        poll = threading.Thread(target=lambda: answers.append(asked(f"{url}?after=1")))
        poll.start()
        eventually(lambda: pending(daemon) == 1)
        daemon.kill()
        daemon = start_daemon()  # restart: always
        assert pending(daemon) == 1, "the volume outlives the daemon's container"
        assert asked(url, {"id": "2", "text": "again"})[0] == 201
        poll.join(60)
        assert [(status, [one["text"] for one in body]) for status, body in answers] == [(200, ["again"])]
        assert "Traceback" not in web.stop() + daemon.stop()


def is_served(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def pending(daemon: Container) -> int:
    """The operations that wait."""
    return int(json.loads(daemon.run("timerctl", "stats", "--json").stdout)["pending"])
