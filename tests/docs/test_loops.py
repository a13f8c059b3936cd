"""No loop of a turn is without a bound: each charges the records that it touches, or states its maximum of rounds."""

from __future__ import annotations

import re
from collections.abc import Iterator

from support.real.trees import ROOT

PURGATORY = ROOT / "timerd" / "purgatory"
LOOP = re.compile(r"(\s*)(?:while|for)\b.*:\s*(?:#.*)?$")
CONSTANT = r"(?:\d+|[A-Z][A-Z_0-9]+)"
# The range ends at a constant, or at the lesser of a number and a constant.
FIXED = re.compile(
    rf"range\((?:{CONSTANT}[\s,+*/-]*)+\):|range\(min\([^()]*\b[A-Z][A-Z_]+\b.*\)\):|\bmin\(.*, {CONSTANT}\)\)"
)
CHARGED = re.compile(r"turn\.touched \+=|\bspent\(a\)")
STATED = re.compile(r"# bound: \S")


def unbounded(text: str) -> Iterator[tuple[int, str]]:
    """The loops, as (number of the line, line), that neither charge what they touch nor state a bound."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        found = LOOP.match(line)
        if found is None or FIXED.search(line) or STATED.search(line) or STATED.search(lines[number - 1]):
            continue
        body = []
        for each in lines[number + 1 :]:
            if each.strip() and len(each) - len(each.lstrip()) <= len(found[1]):
                break
            body.append(each)
        if not any(CHARGED.search(each) for each in body):
            yield number + 1, line.strip()


def test_each_loop_of_a_turn_charges_what_it_touches_or_states_its_bound() -> None:
    """A start is no turn: nobody waits behind it but its own clients."""
    files = [path for path in sorted(PURGATORY.rglob("*.pxd")) if path.parent.name != "start"]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line}" for path in files for number, line in unbounded(path.read_text())
    ]
    assert not wrong, "add `a.turn.touched += ...`, or say `# bound: ...`:\n" + "\n".join(wrong)
    loops = sum(LOOP.match(line) is not None for path in files for line in path.read_text().splitlines())
    assert loops > 150, f"only {loops} loops were found"


def test_a_loop_without_a_charge_is_found() -> None:
    text = """
    while link != head:
        link = next(link)
    a.turn.touched += 1
    for i in range(KEYS_MAX):
        x()
"""
    assert list(unbounded(text)) == [(2, "while link != head:")]
    assert not list(unbounded(text.replace("head:", "head:  # bound: KEYS_MAX")))
    assert not list(unbounded(text.replace("        link", "        a.turn.touched += 1\n        link")))
