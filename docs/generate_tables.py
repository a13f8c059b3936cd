"""Writes what the site has from the code: the page of errors, and the tables of other pages.

    PYTHONPATH=shm_layout:. python docs/generate_tables.py          writes them
    PYTHONPATH=shm_layout:. python docs/generate_tables.py --check  names stale pages; exit status 1 if there are any

`make generate` calls it. The modules of generate/ make the pages: a module has PAGES, or PARTS of pages. A part stands
between two comments: BEGIN and END of generate/text.py. Nothing that is compiled is imported: modules of the client are
read (generate/sources.py). The pages are committed, and a test (tests/docs/operating/test_made_pages.py) compares them
with freshly made ones.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

PAGES = Path(__file__).resolve().parent
ROOT = PAGES.parent
sys.path.extend(str(folder) for folder in (PAGES, ROOT / "client") if str(folder) not in sys.path)

import generate  # noqa: E402
from generate.text import Part, with_parts  # noqa: E402


def _pages() -> dict[Path, Callable[[], str]]:
    """Each page that is made, or has a part that is made, with the function that makes its text."""
    pages: dict[str, Callable[[], str]] = {}
    for found in pkgutil.iter_modules(generate.__path__):
        module = importlib.import_module(f"generate.{found.name}")
        pages |= getattr(module, "PAGES", {})
        for page, parts in getattr(module, "PARTS", {}).items():
            pages[page] = _with_parts_of(PAGES / page, parts)
    return {(PAGES / page).resolve(): pages[page] for page in sorted(pages)}


def _with_parts_of(page: Path, parts: dict[str, Part]) -> Callable[[], str]:
    return lambda: with_parts(page, {part: make() for part, make in parts.items()})


GENERATED = _pages()


def stale_pages() -> Iterator[Path]:
    """The pages that are missing, or differ from what the code says now."""
    for path, text in GENERATED.items():
        if not path.exists() or path.read_text() != text():
            yield path


def main() -> int:
    """Write the pages, or check them. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the parts of the site that are made from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page is stale")
    check = parser.parse_args().check
    stale = list(stale_pages())
    for path in stale:
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(GENERATED[path]())
        sys.stdout.write(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
