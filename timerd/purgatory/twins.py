"""Gives each function of the core a twin that logs before it stores: a step of the build, between Cython and C.

    python twins.py core.c core_twins.c

For example, Cython makes this of a function in wheel.pxd:

    static CYTHON_INLINE void leave_bucket(Arena *a, OpRecord *op) {
      op->bucket = 0;

This step adds a twin of it, and a function that chooses between both:

    __attribute__((cold)) static void leave_bucket_logged(Arena *a, OpRecord *op) {
      TD_LOGGED(op->bucket) = 0;

    static CYTHON_INLINE void leave_bucket_either(Arena *a, OpRecord *op) {
      if (td_images) leave_bucket_logged(a, op); else leave_bucket(a, op);

A twin calls twins. The methods of Core choose between twins and plain functions. So stores cost no more while no copy
is being made, and no function of the core has to name its stores. memory/before_images.h says what TD_LOGGED does.

Why this step works on text: it must find every store of the core, including those that are written next year. Cython
writes each statement on a line of its own. An assignment that this step does not know ends the build. A test compares
copies with the arena, byte by byte (tests/arena/test_before_images.py).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PURGATORY = "__pyx_f_6timerd_9purgatory_"
START = PURGATORY + "5start_"  # these get no twin: a start has ended before a copy may begin
# These may call functions of start/, because no copy is made while they run.
ATTACH = {f"{PURGATORY}7binding_7buffers_{name}" for name in ("attach_checked", "drop_arena")}
CORE = re.compile(r"__pyx_p?[fw]_6timerd_(4core|11core_faults)_")
FUNCTION = re.compile(r"^(static [^\n;{]*?)\b(__pyx_\w+)\(([^;{\n]*)\) \{\n(.*?)^\}\n", re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r"^(\s*)([^\"=]*?[^\"=!<>\s]) ([-+*/|&^]|<<|>>)?= (.*;)$")
# These store as well. Their twins are written by hand, in before_images.h.
STORING = re.compile(r"\b(TD_ORDERED_STORE|td_put|td_commit|memcpy|memset)\(")
UNKNOWN = re.compile(r"\b(td_store_entries|memmove|__atomic_store\w*|__sync_\w+)\(|\+\+;|--;")
# The left side of an assignment that needs no log: a variable, an element or a field of a variable, a declaration, or
# something of Python's.
LOCAL = re.compile(r"[a-z_]\w*(?:\.\w+)*|__pyx_t_\d+\[\d+\]|__Pyx_X?DECREF\(.*|.*\bPy\w*\b.*|(?:const )?char \*\w+")
DECLARED = re.compile(r"(?:const |unsigned |struct )*\w+ \**\w+(?:\[\w*\])?")
# Fields of the core's own struct, which lies beside the arena: they need no log either.
OWN = re.compile(r"__pyx_v_a->(?:turn|journal|members|delivery|wheel|slab|tx)\.\w+")


class UnknownStoreError(Exception):
    """A statement stores, and this step does not know how to log it."""


def logged(line: str) -> str:
    """A line of a function's body with its store logged, if it has one."""
    text = line.strip()
    if text.startswith(("/*", "* ", "*/", "#", "return", "goto", "case")):
        return line
    if UNKNOWN.search(text) and not re.fullmatch(r"__pyx_\w+(\+\+|--);", text):
        raise UnknownStoreError(text)
    if re.match(r"(?:if|else|for|while|switch|\})\b|\{", text):
        if re.search(r"(?:->\w+|\]\)?) [-+*/|&^]?= ", text):
            raise UnknownStoreError(text)
        return line
    found = ASSIGNMENT.match(line)
    if found is None:
        return line
    indent, left, operator, right = found.groups()
    if LOCAL.fullmatch(left) or DECLARED.fullmatch(left) or OWN.fullmatch(left):
        return line
    if not re.search(r"->|\[", left):
        raise UnknownStoreError(text)
    return f"{indent}TD_LOGGED({left}) {operator or ''}= {right}"


def twinned(source: str) -> tuple[str, int]:
    """The C file with twins, and the number of twins. Raises UnknownStoreError."""
    functions = {found[2]: found for found in FUNCTION.finditer(source) if found[2].startswith(PURGATORY)}
    functions = {name: found for name, found in functions.items() if not name.startswith(START)}
    bodies = {name: "\n".join(map(logged, found[4].split("\n"))) for name, found in functions.items()}
    calls = {name: set(re.findall(r"\b__pyx_f_\w+(?=\()", found[4])) for name, found in functions.items()}
    for name in functions.keys() - ATTACH:
        if any(each.startswith(START) for each in calls[name]):
            raise UnknownStoreError(f"{name} calls a function of start/, which has no twin")
    storing = {name for name, body in bodies.items() if "TD_LOGGED(" in body or STORING.search(body)}
    while callers := {name for name in calls.keys() - storing if calls[name] & storing}:
        storing |= callers
    names = re.compile(rf"\b({'|'.join(sorted(storing))})(?=\()")
    ahead, twins = [], []
    for name in functions:
        if name not in storing:
            continue
        head, parameters = functions[name][1], functions[name][3]
        plain = head.replace("CYTHON_INLINE ", "")  # twins are marked cold instead
        arguments = ", ".join(re.findall(r"(\w+)(?:,|$)", parameters.replace("void", "", parameters == "void")))
        # Cold, so that the compiler inlines the plain functions as if there were no twins: 1 to 2 % fewer instructions.
        ahead.append(f"__attribute__((cold)) {plain}{name}_logged({parameters});\n")
        ahead.append(
            f"{head}{name}_either({parameters}) {{\n"
            f"  return unlikely(td_images != NULL) ? {name}_logged({arguments}) : {name}({arguments});\n}}\n"
        )
        body = STORING.sub(r"\1_logged(", names.sub(r"\1_logged", bodies[name]))
        twins.append(f"{plain}{name}_logged({parameters}) {{\n{body}}}\n")

    def chosen(found: re.Match[str]) -> str:
        if not CORE.match(found[2]):
            return found[0]
        either = STORING.sub(r"\1_logged(", names.sub(r"\1_either", found[4]))
        body = "\n".join(map(logged, either.split("\n")))
        return f"{found[1]}{found[2]}({found[3]}) {{\n{body}}}\n"

    first = min(found.start() for found in functions.values())
    rest = FUNCTION.sub(chosen, source[first:])
    return f"{source[:first]}{''.join(ahead)}\n{''.join(twins)}\n{rest}", len(twins)


def main() -> int:
    source, target = map(Path, sys.argv[1:])
    try:
        text, count = twinned(source.read_text())
    except UnknownStoreError as error:
        print(f"twins: {source}: this stores in a way that cannot be logged: {error}", file=sys.stderr)
        return 1
    target.write_text(text)
    print(f"twins: {count} functions of the core that log before they store")
    return 0


if __name__ == "__main__":
    sys.exit(main())
