"""A Redis sorted set of deadlines, a hash of pending operations, Lua scripts, and a client written by hand.

This is the usual design. A registration adds to the set and to the hash. An event removes from both. So does the
poller, a process that asks each millisecond for due operations. The script that removes an operation publishes its
outcome. Each script is atomic. An event that comes before its registration finds no operation, and is forgotten. The
client packs up to BATCH operations into one call of a script, pipelines calls, and does not wait for replies.
"""

from __future__ import annotations

import hashlib
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.lib.common import Failed

from .book import Book, Firer, Owner, Way

BATCH = 64
POLL_S = 0.001
START_S = 10.0
END_S = 10.0
CHANNEL = "outcomes"
REGISTER = """
for i = 1, #ARGV, 3 do
  redis.call('ZADD', KEYS[1], ARGV[i + 1], ARGV[i])
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
end"""
FIRE = """
local settled = {}
for i = 1, #ARGV, 2 do
  if redis.call('HDEL', KEYS[2], ARGV[i]) == 1 then
    redis.call('ZREM', KEYS[1], ARGV[i])
    settled[#settled + 1] = 'c ' .. ARGV[i] .. ' ' .. ARGV[i + 1]
  end
end
if #settled > 0 then redis.call('PUBLISH', 'outcomes', table.concat(settled, ' ')) end"""
EXPIRE = """
local due, settled = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1000), {}
for _, key in ipairs(due) do
  redis.call('ZREM', KEYS[1], key)
  if redis.call('HDEL', KEYS[2], key) == 1 then settled[#settled + 1] = 'e ' .. key .. ' ' .. ARGV[1] end
end
if #settled > 0 then redis.call('PUBLISH', 'outcomes', table.concat(settled, ' ')) end
return #due"""
KEYS = ("deadlines", "waiting")


def address_of(directory: Path) -> str:
    return str(directory / "redis.sock")


@contextmanager
def redis_server(directory: Path) -> Iterator[int]:
    """Run a server on a unix socket in this directory. It writes nothing to disk. Gives its pid."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    options = {
        "port": "0", "unixsocket": address_of(directory), "save": "", "appendonly": "no", "dir": str(directory),
        "maxclients": "10000",
    }  # fmt: skip
    command = [
        str(shutil.which("redis-server")),
        *(word for name, value in options.items() for word in (f"--{name}", value)),
    ]
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)),
    )
    try:
        end = time.monotonic() + START_S
        while True:
            with suppress(OSError), Redis(directory) as client:
                client.ask("PING")
                break
            if server.poll() is not None or time.monotonic() > end:
                raise Failed(f"redis-server did not start (status {server.poll()})")
            time.sleep(0.02)
        yield server.pid
    finally:
        server.terminate()
        try:
            server.wait(END_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def command(*words: str | bytes | int) -> bytes:
    """A command in the encoding of Redis (RESP)."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Redis:
    """A connection. ask() returns the reply; send() drops replies."""

    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(address_of(directory))
        except OSError:
            self.socket.close()
            raise

    def ask(self, *words: str | bytes | int) -> bytes:
        """Send a command, and return the first bytes of its reply. No other command may be in flight."""
        self.socket.sendall(command(*words))
        return self._reply(self.socket.recv(1 << 16))

    def send(self, data: bytes) -> None:
        """Send commands, and drop the replies that have arrived. Raises Failed when a reply is an error."""
        self.socket.sendall(data)
        with suppress(BlockingIOError):
            while self._reply(self.socket.recv(1 << 16, socket.MSG_DONTWAIT)):
                pass

    def _reply(self, reply: bytes) -> bytes:
        if reply.startswith(b"-") or b"\n-" in reply:
            raise Failed(f"redis answered {reply[reply.index(b'-') :].splitlines()[0].decode()}")
        return reply

    def __enter__(self) -> Redis:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()


def shas(client: Redis) -> tuple[str, str, str]:
    """Load the scripts REGISTER, FIRE and EXPIRE. Returns their names, in this order."""
    for script in (REGISTER, FIRE, EXPIRE):
        client.ask("SCRIPT", "LOAD", script)
    register, fire, expire = (hashlib.sha1(script.encode()).hexdigest() for script in (REGISTER, FIRE, EXPIRE))
    return register, fire, expire


def note(book: Book, message: str) -> None:
    """Note the outcomes in a message of the channel: c KEY FIRED_NS or e KEY SETTLED_US, any number of them."""
    words = iter(message.split(" "))
    for kind, key, at in zip(words, words, words, strict=True):
        if kind == "c":
            book.completed(key, int(at))
        else:
            book.expired(key, int(at) * 1_000)


class ScriptOwner(Owner):
    """Registers by the script, and listens to the channel in a thread."""

    def __init__(self, directory: Path, book: Book) -> None:
        super().__init__(directory, book)
        self._client, self._listener = Redis(directory), Redis(directory)
        self._sha, _, _ = shas(self._client)
        self._listener.ask("SUBSCRIBE", CHANNEL)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def register(self, keys: Sequence[str]) -> None:
        call, payload = self.book.call, self.book.payload
        for start in range(0, len(keys), BATCH):
            words: list[str | bytes | int] = ["EVALSHA", self._sha, 2, *KEYS]
            for key in keys[start : start + BATCH]:
                words += (key, -(-call() // 1_000), payload)
            self._client.send(command(*words))

    def _listen(self) -> None:
        """Note the outcomes of each message: `*3`, then `message`, CHANNEL and the text, each after its length."""
        with suppress(OSError), self._listener.socket.makefile("rb") as lines:
            while lines.readline():
                words = []
                for _ in range(3):
                    size = int(lines.readline()[1:])
                    words.append(lines.read(size + 2)[:-2])
                note(self.book, words[2].decode())

    def close(self) -> None:
        for client in (self._client, self._listener):
            client.socket.shutdown(socket.SHUT_RDWR)
            client.socket.close()
        self._thread.join()


class ScriptFirer(Firer):
    """Fires by the script."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._client = Redis(directory)
        _, self._sha, _ = shas(self._client)

    def fire(self, keys: Sequence[str], at_ns: Sequence[int]) -> None:
        for start in range(0, len(keys), BATCH):
            words: list[str | bytes | int] = ["EVALSHA", self._sha, 2, *KEYS]
            for pair in zip(keys[start : start + BATCH], at_ns[start : start + BATCH], strict=True):
                words += pair
            self._client.send(command(*words))

    def close(self) -> None:
        self._client.ask("PING")
        self._client.socket.close()


class Scripts(Way):
    """See the module."""

    name = "Redis sorted set + Lua, client by hand"

    def missing(self) -> str:
        return "" if shutil.which("redis-server") else "apt-get install redis-server"

    @contextmanager
    def serve(self, directory: Path) -> Iterator[list[int]]:
        with redis_server(directory) as pid:
            program = [sys.executable, "-m", f"{__package__}.poller", str(directory)]
            poller = subprocess.Popen(program, start_new_session=True)
            try:
                yield [pid, poller.pid]
            finally:
                poller.terminate()
                poller.wait()

    def owner(self, directory: Path, book: Book) -> Owner:
        return ScriptOwner(directory, book)

    def firer(self, directory: Path) -> Firer:
        return ScriptFirer(directory)
