"""Pages for readers: their links lead somewhere, and their lines are no longer than those of the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.real.trees import ROOT, SETTINGS

LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
# Not the templates of .github: nobody reads them as pages.
LISTING = ["git", "ls-files", "*.md", ":!.github"]
LISTED = subprocess.run(LISTING, cwd=ROOT, capture_output=True, text=True).stdout.split()
PAGES = LISTED or ["README.md", "timerd/DESIGN.md", "client/DESIGN.md"]  # in a tree without git
TOCTREE = re.compile(r"^```\{toctree\}\n(?:^:.*\n)*(.*?)^```$", re.MULTILINE | re.DOTALL)  # of docs/index.md
NAMED = re.compile(r"`((?:[\w.-]+/)*\w+\.(?:py|pyx|pxd|h))`")
SOURCES = [
    f"/{path.relative_to(ROOT)}"
    for room in ("shm_layout", "client", "timerd", "tests", "bench")
    for path in (ROOT / room).rglob("*.*")
]
GENERATED = {"bench/RESULTS.md", "shm_layout/timerd_shm/generated/LAYOUT.md"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    path = ROOT / page
    gone = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert not gone


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    named = set(NAMED.findall((ROOT / page).read_text()))
    assert not [name for name in named if not any(source.endswith(f"/{name}") for source in SOURCES)]


@pytest.mark.parametrize("page", sorted(set(PAGES) - GENERATED))
def test_lines_of_pages_are_no_longer_than_those_of_the_code(page: str) -> None:
    longest = int(SETTINGS["tool"]["ruff"]["line-length"])
    lines = (ROOT / page).read_text().splitlines()
    long = [number for number, line in enumerate(lines, start=1) if len(line) > longest and not line.startswith("|")]
    assert not long, f"{page}: lines {long}"


def test_every_page_is_reached_from_the_readme() -> None:
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        text = page.read_text()
        linked = {(page.parent / link).resolve() for link in LINK.findall(text) if link.endswith(".md")}
        listed = [entry for tree in TOCTREE.findall(text) for entry in tree.split() if not entry.startswith(":")]
        linked |= {found.resolve() for entry in listed for found in page.parent.glob(f"{entry}.md")}
        waiting += sorted(linked - seen)
    assert {ROOT / page for page in PAGES} <= seen


# Each extra of timerd, and the sign that a snippet needs it. Packages such as Flask are left out: their users know
# them.
EXTRAS = {
    "cron": re.compile(r"cron=\"|cronsim"),
    "kafka": re.compile(r"^(?:from|import) timerd_kafka", re.MULTILINE),
    "metrics": re.compile(r"prometheus_client|TimerdCollector"),
    "tracing": re.compile(r"tracing\.instrument|^(?:from|import) opentelemetry", re.MULTILINE),
    "spark": re.compile(r"^(?:from|import) (?:timerd_spark|pyspark)", re.MULTILINE),
}
SNIPPET = re.compile(r"^```(?:python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", sorted(set(PAGES) - GENERATED))
def test_a_page_names_the_extra_that_its_snippets_need(page: str) -> None:
    text = (ROOT / page).read_text()
    code = "\n".join(SNIPPET.findall(text))
    missing = [extra for extra, need in EXTRAS.items() if need.search(code) and f"timerd[{extra}" not in text]
    assert not missing, "write `timerd[EXTRA]` where the snippet stands"
