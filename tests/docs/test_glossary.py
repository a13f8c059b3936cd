"""docs/reference/glossary.md: its terms stand in order, each names its file or another term, and all paths exist."""

from __future__ import annotations

import re

from support.real.trees import ROOT

TEXT = (ROOT / "docs/reference/glossary.md").read_text()
ENTRY = re.compile(r"^### (.+)\n\n((?:.+\n)+)", re.MULTILINE)
PATH = re.compile(r"`((?:timerd|client|shm_layout|tests|bench)/[\w./]+)`")


def entries() -> dict[str, str]:
    """The text of each term, in one line."""
    return {term: " ".join(text.split()) for term, text in ENTRY.findall(TEXT)}


def test_terms_are_in_order_and_name_places_that_exist() -> None:
    terms = list(entries())
    assert len(terms) >= 70
    assert terms == sorted(terms, key=str.casefold)
    gone = [f"{term}: {path}" for term, text in entries().items() for path in PATH.findall(text) if not exists(path)]
    assert not gone, "\n".join(gone)


def exists(path: str) -> bool:
    return (ROOT / path).exists()


def test_each_term_names_its_file_or_another_term() -> None:
    homeless = [
        term for term, text in entries().items() if not PATH.search(text.partition("Where:")[2]) and "See *" not in text
    ]
    assert not homeless


def test_terms_that_an_entry_points_to_exist() -> None:
    terms = {word.strip() for term in entries() for word in term.split(",")}
    pointed = re.findall(r"\*([a-z -]+)\*", " ".join(re.findall(r"[Ss]ee (\*[^.]+)\.", " ".join(entries().values()))))
    assert len(pointed) >= 8
    assert set(pointed) <= terms, set(pointed) - terms
