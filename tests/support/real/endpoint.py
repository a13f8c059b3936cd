"""A real HTTP endpoint in a process of its own, which a test makes fail, stall and recover.

with Endpoint() as endpoint:                 # POST / takes JSON lists of ids
    endpoint.mode("fail")                    # 503; "refuse": 400; "stall": no answer; "ok"
    endpoint.asked()                         # POSTs since the last mode()
    endpoint.taken()                         # the ids of every POST that it answered with 200, in order
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

PATIENCE_S = 20.0
STATUS = {"fail": 503, "refuse": 400}


def post(url: str, ids: Any, timeout: float = PATIENCE_S) -> Any:
    """POST as a user's send() does. Raises urllib's errors."""
    request = urllib.request.Request(url, json.dumps(ids).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)


class Endpoint:
    """The server's process, ended by pid."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().decode().strip()
        assert self.url, "the endpoint did not start"

    def mode(self, mode: str) -> None:
        post(f"{self.url}/mode", mode)

    def asked(self) -> int:
        return int(post(f"{self.url}/asked", None))

    def taken(self) -> list[Any]:
        taken: list[Any] = post(f"{self.url}/taken", None)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Handler(BaseHTTPRequestHandler):
    mode = "ok"
    asked = 0
    recovered = threading.Event()  # set unless the mode is "stall"
    taken: list[Any] = []  # noqa: RUF012 (one server in a process)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = 200
        answer: Any = None
        if self.path == "/mode":
            Handler.mode, Handler.asked = asked, 0
            Handler.recovered.set() if asked != "stall" else Handler.recovered.clear()
        elif self.path == "/asked":
            answer = Handler.asked
        elif self.path == "/taken":
            answer = Handler.taken
        else:
            Handler.asked += 1
            Handler.recovered.wait()
            status = STATUS.get(Handler.mode, 200)
            if status == 200:
                Handler.taken += asked
        body = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the client has given up

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    Handler.recovered.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
