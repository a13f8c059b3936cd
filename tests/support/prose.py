"""The prose of the tree: comments, docstrings and messages of sources, and the paragraphs of pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PYTHON = {".py", ".pyi", ".pyx", ".pxd"}
CODE = re.compile(r"``?[^`]*``?")
QUOTES = re.compile(r'^[rbfuRBFU]*("""|\'\'\'|"|\')|("""|\'\'\'|"|\')$')
# Outside of these, Python has neither a # nor a quote. This finds what the tokenizer finds, in a fifth of the time.
COMMENT_OR_STRING = re.compile(
    r"(?P<comment>#[^\n]*)|(?:\b[rbfuRBFU]{1,2})?"
    r"(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')",
    re.DOTALL,
)


class Passage(NamedTuple):
    """A text that is read as a whole. Code in backticks is replaced by one letter."""

    line: int
    text: str


def passages(path: Path) -> list[Passage]:
    """The prose of this file, without the code."""
    text = path.read_text()
    found = of_python(text) if path.suffix in PYTHON else of_page(text) if path.suffix == ".md" else of_script(text)
    return [Passage(line, " ".join(CODE.sub("X", prose).split())) for line, prose in found]


def of_python(text: str) -> Iterator[Passage]:
    """Each block of comments, and each paragraph of each string that has a space."""
    block, start, last, line, done = list[str](), 0, 0, 1, 0
    for found in COMMENT_OR_STRING.finditer(text):
        line += text.count("\n", done, found.start())
        done = found.start()
        if (comment := found["comment"]) is not None:
            if block and line != last + 1:
                yield Passage(start, " ".join(block))
                block = []
            start = start if block else line
            block, last = [*block, comment.lstrip("#:! ")], line
        elif " " in found[0]:
            count = line
            for paragraph in re.split(r"\n\s*\n", QUOTES.sub("", found[0])):
                yield Passage(count, paragraph)
                count += paragraph.count("\n") + 2
    if block:
        yield Passage(start, " ".join(block))


def of_page(text: str) -> Iterator[Passage]:
    """Each paragraph, list item, heading and table's row outside of code."""
    is_code, block, start = False, list[str](), 0
    for line, row in enumerate([*text.splitlines(), ""], 1):
        is_fence = row.startswith("```")
        is_code ^= is_fence
        is_text = not (is_code or is_fence or row.startswith("    ") or not row.strip())
        if block and (not is_text or re.match(r"\s*([-*|#]|\d+\.) ?", row)):
            yield Passage(start, " ".join(block))
            block = []
        if is_text:
            start = start if block else line
            block.append(row)


def of_script(text: str) -> Iterator[Passage]:
    """Each comment of a shell script, a Makefile, C, or a configuration."""
    for line, row in enumerate(text.splitlines(), 1):
        if found := re.search(r"(?:^|\s)(?:#|//|/?\*) (.*)", row):
            yield Passage(line, found[1])
