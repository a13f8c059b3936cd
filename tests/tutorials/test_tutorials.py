"""The tutorials work: a reader's terminals are played, and show what the pages show."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from support.real.daemons import Daemon
from support.real.patience import eventually
from support.real.shell import command_of
from support.real.trees import ROOT
from support.web.pending import pending
from tutorials.terminals import Player, files_of


def page_of(name: str) -> str:
    return (ROOT / f"docs/tutorial/{name}.md").read_text()


@pytest.fixture
def directory(runtime_dir: Path) -> Path:
    made = runtime_dir / "tutorial"
    made.mkdir()
    return made


@pytest.fixture
def at_rest(runtime_dir: Path) -> Daemon:
    """The daemon that the page starts: for looks at its arena."""
    return Daemon(runtime_dir, start=False)


@pytest.mark.long
def test_two_terminals(directory: Path, at_rest: Daemon) -> None:
    def has_cancelled() -> bool:
        return bool(at_rest.stats()["counters"]["orphans_cancelled"] == 1)

    with Player(directory, after={"kill -9 4714": lambda: eventually(has_cancelled)}) as player:
        player.play(page_of("two-terminals"))


@pytest.mark.long
def test_the_chat(directory: Path, at_rest: Daemon, port: int) -> None:
    browsers = [Browser(f"http://127.0.0.1:{port}") for _ in range(2)] if shutil.which("node") else []

    def poll_waits() -> None:
        eventually(lambda: pending(at_rest) == 1, "no poll waits")

    def browsers_open() -> None:
        poll_waits()
        for browser in browsers:
            browser.open(files_of(page_of("chat"))["page.html"])
        eventually(lambda: pending(at_rest) == 1 + len(browsers), "the browsers do not poll")
        send("before")
        all_have("before")

    def send(text: str) -> None:
        for browser in browsers[:1]:
            browser.send(text)

    def all_have(*texts: str) -> None:
        for browser in browsers:
            eventually(lambda: len(browser.shown) >= len(texts), f"a browser does not show {texts[-1]}")  # noqa: B023
            assert browser.shown == [*texts]

    post = """localhost:8000/rooms/tea -H 'Content-Type: application/json' -d '{"id": "4", "text": "back?"}'"""
    after = {
        "curl -is localhost:8000/rooms/tea": poll_waits,
        "curl -s localhost:8000/rooms/tea": browsers_open,
        f"curl -is {post}": lambda: send("without a daemon"),
        f"curl -sf --retry 9 {post}": lambda: all_have("before", "without a daemon"),
    }
    assert all(f"$ {command}\n" in page_of("chat") for command in after)
    with Player(directory, replace={"8000": str(port)}, after=after) as player:
        try:
            player.play(page_of("chat"))
        finally:
            for browser in browsers:
                browser.close()


BROWSER = """
const [, base, script] = process.argv, itsFetch = fetch, text = {};
globalThis.fetch = (path, options) => itsFetch(base + path.replace("tea", "cake"), options);
globalThis.crypto ??= require("crypto").webcrypto;
globalThis.document = {
  createElement: () => ({}), getElementById: () => ({append: item => console.log(item.textContent)}),
  forms: [{elements: {text}}],
};
require("readline").createInterface({input: process.stdin}).on("line", line => {
  text.value = line;
  document.forms[0].onsubmit({preventDefault() {}, target: document.forms[0]});
});
eval(script);
"""


class Browser:
    """A window with the chat's page: its script under node, in a room of its own."""

    def __init__(self, base: str) -> None:
        self.shown: list[str] = []
        self._base = base
        self._process: subprocess.Popen[str] | None = None
        self._reading = threading.Thread(target=self._read)

    def open(self, page: str) -> None:
        script = page.partition("<script>")[2].partition("</script>")[0]
        command = ["node", "-e", BROWSER, self._base, script]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self.shown.append(line.rstrip())

    def send(self, text: str) -> None:
        """Type a line, and press the button."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reading.join()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()


@pytest.mark.long
def test_the_nightly_job(directory: Path, at_rest: Daemon) -> None:
    def is_missed() -> bool:
        """Whether a call is due and no worker is there."""
        rows = subprocess.run(command_of("calls", "--json"), capture_output=True, text=True).stdout
        return '"state": "deserted"' in rows

    def is_slow() -> bool:
        return "this one takes a minute" in player.terminals["terminal 1"].shown

    def has_a_dead_letter() -> bool:
        return bool(at_rest.stats()["counters"]["dead_letters"] == 1)

    ends = iter([is_missed])  # the workers do not start again after the later ones
    after = {
        "touch slow": lambda: eventually(is_slow),
        "^C": lambda: eventually(next(ends, lambda: True)),
        "gave up the report after attempt 3: [Errno 2] No such file or directory: 'orders.csv'": lambda: eventually(
            has_a_dead_letter
        ),
    }
    assert all(f"{line}\n" in page_of("nightly-job") for line in after)
    with Player(directory, after=after) as player:
        player.play(page_of("nightly-job"))


def test_the_tests_of_the_tutorials(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The import hook of an editable install makes pytest warn.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-n0 -p no:cacheprovider -W ignore::pytest.PytestAssertRewriteWarning")
    (directory / "tasks.py").write_text(files_of(page_of("nightly-job"))["tasks.py"])
    (directory / "app.py").write_text(files_of(page_of("chat"))["app.py"])
    with Player(directory) as player:
        player.play(page_of("testing-it"))
