"""Plain English: no source, page or message has one of the patterns that make readers read a sentence twice.

Each pattern has an example and its plain form. To see all places: `python tests/docs/test_words.py [FOLDER...]`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, "tests")

from support.prose import PYTHON, passages
from support.real.trees import ROOT

READ = PYTHON | {".md", ".sh", ".toml", ".h", ".service", ".socket", ""}
NEGATION = re.compile(r"\b(?:no|not|nothing|nobody|never|none|nor|neither|without|cannot|hardly|\w+n't)\b", re.I)


class Pattern(NamedTuple):
    """A pattern, a sentence of this tree that had it, and the plain form."""

    expression: re.Pattern[str]
    example: str
    plain: str


PATTERNS = {
    "a relative clause as subject": Pattern(
        re.compile(r"(?:^|(?<=[.!] ))(?:Who|Whoever|What|Whatever)\b(?![^.]*\?)[^.]*"),
        "Whoever waits for it has its outcome sooner.",
        "Outcomes arrive sooner.",
    ),
    "programs that are told, hear and have news": Pattern(
        re.compile(r"\b(?:(?:is|are|was|were|be|been) told|told so|hears?|heard|news)\b"),
        "A client that comes back later is told so.",
        "A later registration gets MarkTooOldError.",
    ),
    "says so": Pattern(
        re.compile(r"\b(?:says?|said|saying) so\b"),
        "If the knob has another name, it says so.",
        "Knob.word names the word if it differs.",
    ),
    "so many": Pattern(
        re.compile(r"\b[Ss]o (?:many|long|much|often|few)\b(?![^.;:]{0,80}\b(?:as|that)\b)"),
        "The caller waits so long.",
        "The caller waits for `seconds`.",
    ),
    "that there are": Pattern(
        re.compile(r"\bthat there (?:is|are|was|were)\b(?= ?(?:[.,;:)]|$|not\b))"),
        "a request may name many topics that there are not",
        "a request may name many unknown topics",
    ),
    "of two the first": Pattern(
        re.compile(
            r"\b[Oo]f (?:two|three|several|many|all)\b(?: \w+){0,5} the (?:first|last|one|only|newest|oldest)\b"
        ),
        "Of two clients in a false journal the first one to go frees the slot.",
        "Two clients may share a slot. The first to leave frees it.",
    ),
    "no more, at the end": Pattern(
        re.compile(r"\bno more\b(?= ?(?:[.;:)]|$))"),
        "The ring holds the event no more.",
        "The ring no longer holds the event.",
    ),
    "any more, without a negation": Pattern(
        re.compile(r"\bany ?more\b"),
        "If any handler runs any more, the client waits.",
        "If a handler is still running, the client waits.",
    ),
    "private nouns": Pattern(
        re.compile(r"\b(?:plight|relief)s?\b", re.I),
        "The plight of a connection.",
        "The status of a connection.",
    ),
}
# Files that quote the patterns, each with the reason.
EXCEPTIONS = {
    "tests/docs/test_words.py": "it quotes the patterns",
}


class Finding(NamedTuple):
    path: str
    line: int
    pattern: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.pattern}: {self.text}"


def findings(*folders: str) -> list[Finding]:
    """All places where a pattern stands."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix not in READ or name in EXCEPTIONS or "/generated/" in name or not path.exists():
            continue
        for line, text in passages(path):
            found += [Finding(name, line, *each) for each in patterns_in(text)]
    return found


def patterns_in(text: str) -> list[tuple[str, str]]:
    """The patterns of a passage, each with the words around it."""
    found = []
    for name, pattern in PATTERNS.items():
        for match in pattern.expression.finditer(text):
            sentence = max(text.rfind(end, 0, match.start()) for end in (". ", ": ", "; ", "? "))
            if name.startswith("any more") and NEGATION.search(text, max(0, sentence), match.start()):
                continue
            found.append((name, text[max(0, match.start() - 60) : match.end() + 40]))
    return found


def test_each_pattern_finds_its_example_and_not_the_plain_form() -> None:
    for name, (_, example, plain) in PATTERNS.items():
        assert [each for each, _ in patterns_in(example)] == [name]
        assert not patterns_in(plain)


def test_questions_and_comparisons_are_plain() -> None:
    for text in ("What happens if a worker dies?", "as many as there are", "So many clients came that none got in."):
        assert not patterns_in(text), text


def test_no_sentence_has_a_pattern() -> None:
    found = findings()
    assert not found, f"{len(found)} sentences to write again:\n" + "\n".join(map(str, found[:50]))


def test_each_exception_is_still_needed() -> None:
    for name in EXCEPTIONS:
        assert (ROOT / name).exists(), f"{name} is gone: take it from EXCEPTIONS"


if __name__ == "__main__":
    for finding in findings(*sys.argv[1:]):
        print(finding)
