"""No loop or recursion of a turn is without a bound: each charges the records that it touches, or states its bound."""

from __future__ import annotations

import re
from collections import defaultdict
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


DOCSTRING = re.compile(r'"""(?s:.*?)"""')
FUNCTION = re.compile(r"cdef (?:inline )?[\w ]*?\**(\w+)\(")


def bodies(text: str) -> dict[str, str]:
    """The functions at the top level: name and body, without the first line and the docstring."""
    found: dict[str, str] = defaultdict(str)
    name = ""
    for line in DOCSTRING.sub("", text).splitlines():
        if line.strip() and not line.startswith((" ", ")")):
            beginning = FUNCTION.match(line)
            name = beginning[1] if beginning else ""
        elif name:
            found[name] += line + "\n"
    return found


def recursive(text: str) -> list[str]:
    """The functions of a file that call themselves, directly or not, without a charge or a stated bound on the way."""
    functions = bodies(text)
    calls = {name: set(re.findall(r"\b(\w+)\(", body)) & set(functions) for name, body in functions.items()}
    found = []
    for name in functions:
        reached: set[str] = set()
        further = calls[name]
        while further:
            reached |= further
            further = {each for other in further for each in calls[other]} - reached
        way = [functions[each] for each in reached | {name}]
        if name in reached and not any(CHARGED.search(body) or STATED.search(body) for body in way):
            found.append(name)
    return found


def test_each_recursion_of_a_turn_charges_its_steps_or_states_its_bound() -> None:
    """Files call only files that they cimport, and cimports form no circle. So a recursion stays within a file."""
    texts = {path: path.read_text() for path in sorted(PURGATORY.rglob("*.pxd")) if path.parent.name != "start"}
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path, text in texts.items() for name in recursive(text)]
    assert not wrong, "add `a.turn.touched += ...`, or say `# bound: ...`:\n" + "\n".join(wrong)
    functions = sum(len(bodies(text)) for text in texts.values())
    assert functions > 500, f"only {functions} functions were found"


def test_a_recursion_without_a_charge_is_found() -> None:
    text = """
cdef inline uint32_t down(Arena *a, uint32_t at) noexcept nogil:
    return further(a, at) if at else 0


cdef inline uint32_t further(
    Arena *a, uint32_t at
) noexcept nogil:
    return down(a, next_of(a, at))


cdef inline uint32_t next_of(Arena *a, uint32_t at) noexcept nogil:
    return at - 1
"""
    assert recursive(text) == ["down", "further"]
    assert recursive(text.replace("    return at - 1", "    a.turn.touched += 1\n    return at - 1")) == []


def test_each_loop_of_a_turn_charges_what_it_touches_or_states_its_bound() -> None:
    """The loops of a start are left out. A start is not a turn: only the daemon's own clients wait for it."""
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
