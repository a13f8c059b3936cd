"""The program that sends damaged frames (acceptance/clients/attack.py): it connects again, and it can be stopped."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from support.kafka.patience import PATIENCE_S, eventually
from support.kafka.ports import free_ports
from support.real.trees import ROOT

LARGE = 16 << 20  # bytes: no socket takes them at once
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() resets the connection


class Frames:
    """Frames that a broker does not take."""

    valid = ()

    def damaged(self) -> tuple[str, bytes]:
        return "large", bytes(LARGE)


@pytest.fixture
def attack_on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes an attack on an address, with this number of large frames."""
    monkeypatch.syspath_prepend(ROOT / "tests/kafka/acceptance")
    module: Any = import_module("clients.attack")
    monkeypatch.setattr(module, "Frames", lambda *_: Frames())
    monkeypatch.setattr(module, "SILENT_S", PATIENCE_S)

    def made(address: str, count: int) -> Any:
        plan = {"seed": 1, "topic": "t", "partitions": 1, "group": "g", "count": count, "addresses": [address]}
        return module.Attack(plan)

    return made


@pytest.fixture
def resetting() -> Iterator[str]:
    """The address of a server that resets each connection after its first bytes."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:  # the test is over
                    return
                with client:
                    client.recv(1)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)


@pytest.mark.long
def test_an_attack_goes_on_when_a_connection_ends_in_the_middle_of_a_frame(attack_on: Any, resetting: str) -> None:
    attack, stop = attack_on(resetting, 200), threading.Event()
    attack.run(stop, lambda **_: None)
    assert attack.sent == sum(attack.ends.values()) == 200
    assert set(attack.ends) == {"closed"}


def test_an_attack_on_a_broker_that_refuses_connections_ends_when_it_is_stopped(attack_on: Any) -> None:
    attack, stop = attack_on(f"127.0.0.1:{free_ports(1)}", 200), threading.Event()
    running = threading.Thread(target=attack.run, args=(stop, lambda **_: None), daemon=True)
    running.start()
    eventually(lambda: attack.ends["no connection"], "it tries no connection")
    stop.set()
    running.join(PATIENCE_S)
    assert not running.is_alive() and attack.sent == 0
