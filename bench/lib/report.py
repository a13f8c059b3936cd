"""Make bench/RESULTS.md and its plots from bench/results, and from Kafka's own figures (quoted.py).

The same documents give the same bytes.

    python bench/lib/report.py [--results DIR] [--out FILE] [--check]

--check writes nothing. It ends with status 1 when FILE differs from the text that the documents give, or a plot is
missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_uppercase
from textwrap import wrap
from typing import Any, TypeAlias

from bench.lib.common import ROOT, Row, columns_of, is_number, rows_with, shown
from bench.lib.first_page import FIRST_PAGE, Extract
from bench.lib.plots import PLOTS, draw, points
from bench.lib.targets import TARGETS

Document: TypeAlias = dict[str, Any]  # of one suite (common.py)
Documents: TypeAlias = dict[str, Document]  # by suite
BENCH = ROOT / "bench"
RESULTS = BENCH / "results"
# In the order of the results; each is bench/suites/NAME.py.
SUITES = (
    "core",
    "rivals",
    "article",
    "why_cython",
    "client",
    "ladder",
    "latency",
    "quiet",
    "longest",
    "longpolls",
    "scale",
    "cost",
    "alternatives",
    "idle",
    "kafka_mock",
    "recovery",
    "snapshots",
    "journal",
    "overload",
    "deliveries",
    "subscribe",
)
# These suites take long, and `make bench` does not run them: the gate (`python bench/suites/overload.py --gate`),
# injected faults (`python bench/suites/soak.py --json bench/results/soak.json`), and the Kafka broker (`make
# accept-kafka`).
AT_LENGTH = ("gate", "soak", "storm", "fuzz", "kafka")
WIDTH = 120
NOTHING = "Nothing was measured yet: `make bench`.\n"


def documents_of(directory: Path) -> Documents:
    """The documents that exist, by suite, in the order of the suites; long ones come last."""
    found = {}
    for name in (*SUITES, *AT_LENGTH):
        path = directory / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text())
    return found


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    columns = columns_of(rows)
    yield "| " + " | ".join(column.replace("_", " ") for column in columns) + " |"
    yield "|" + "|".join("---:" if is_number(rows, column) else "---" for column in columns) + "|"
    for row in rows:
        yield "| " + " | ".join(shown(row.get(column)).replace("|", "\\|") for column in columns) + " |"


def letters(documents: Documents) -> dict[str, str]:
    """The letter of each suite's machine."""
    machines = list(dict.fromkeys(machine_of(document) for document in documents.values()))
    return {name: ascii_uppercase[machines.index(machine_of(document))] for name, document in documents.items()}


def machine_of(document: Document) -> str:
    """The machine of a suite, and the versions of what it ran."""
    machine = document["machine"]
    parts = [machine["cpu"], f"{machine['cores']} cores", f"{machine['memory_bytes'] / (1 << 30):.0f} GiB"]
    parts += [f"Linux {machine['kernel']}", machine["python"], f"libzmq {machine['libzmq']}", machine["compiler"]]
    parts += ["huge pages in /dev/shm"] if machine.get("huge_pages") else []
    return ", ".join(parts)


def machines(documents: Documents) -> Iterator[str]:
    """The machines by letter, each with its suites and their commits."""
    marks = letters(documents)
    for letter in sorted(set(marks.values())):
        here = [name for name, mark in marks.items() if mark == letter]
        by_commit: dict[str, list[str]] = {}
        for name in here:
            by_commit.setdefault(documents[name]["machine"]["commit"] or "unknown", []).append(name)
        suites = "; ".join(f"{', '.join(names)} (commit {commit})" for commit, names in by_commit.items())
        yield f"* Machine {letter}: {machine_of(documents[here[0]])}. {suites}."
    if len(set(marks.values())) > 1:
        yield ""
        yield "Figures of two machines, or of two hours of one machine, are not to be compared with each other."
    yield ""


def how(document: Document, letter: str) -> str:
    """How a suite was measured: command, machine, time, load of the machine, and whether the run was whole."""
    load = ", ".join(f"{value:.2f}" for value in document["machine"]["load_average"])
    state = [word for word in ("short", "partial") if document[word]]
    line = f"`{document['command']}`, machine {letter}, {document['started']}, {document['seconds']:.0f} s"
    line += f", load average before it {load}"
    return line + (f". **{', '.join(state).capitalize()} run.**" if state else "")


def first_page(documents: Documents) -> Iterator[str]:
    """The figures that matter to users, which come before all others (first_page.py)."""
    for part in FIRST_PAGE:
        yield f"## {part.title}"
        yield ""
        for extract in part.extracts:
            yield f"### {extract.title}"
            yield ""
            yield from wrap(extract.says, WIDTH)
            yield ""
            yield from table(extract.given) if extract.given else extracted(extract, documents)
            yield ""


def extracted(extract: Extract, documents: Documents) -> Iterator[str]:
    """The rows of a suite that the first page shows, and how they were measured."""
    document = documents.get(extract.suite)
    rows = rows_with(document["tables"].get(extract.table, []), dict(extract.where)) if document else []
    if not document or not rows:
        yield f"Not measured: `python bench/suites/{extract.suite}.py`."
        return
    yield how(document, letters(documents)[extract.suite])
    yield ""
    yield from table([{column: row.get(column) for column in extract.columns} for row in rows])


def to_reach(documents: Documents) -> Iterator[str]:
    """The table of the numbers to reach, each with the measured figure and its machine."""
    marks = letters(documents)
    yield "| what | target | measured | ratio | reached | machine | by |"
    yield "|---|---:|---:|---:|---|---|---|"
    for target in TARGETS:
        figure = target.reached(documents)
        sign = ">=" if target.at_least else "<="
        document = documents.get(target.suite)
        command = f"`{document['command']}`" if document else f"`python bench/suites/{target.suite}.py`"
        cells = [target.what, f"{sign} {target.goal:,.12g} {target.unit}".rstrip()]
        if figure is None:
            cells += ["-", "-", "not measured", "-", command]
        else:
            held = "yes" if target.held(figure) else "**no**"
            cells += [f"{shown(float(figure))} {target.unit}".rstrip(), f"{figure / target.goal:.2f}", held]
            cells += [marks[target.suite], command]
        yield "| " + " | ".join(cells) + " |"


def section(document: Document, letter: str, drawn: Sequence[str]) -> Iterator[str]:
    """The section of one suite."""
    yield f"## {document['suite'].replace('_', ' ')}"
    yield ""
    yield document["about"]
    yield ""
    yield how(document, letter)
    for name, rows in document["tables"].items():
        yield ""
        yield f"### {name.replace('_', ' ')}"
        yield ""
        yield from table(rows)
    for file in drawn:
        yield ""
        yield f"![{file}](plots/{file}.svg)"
    if document["checks"]:
        yield ""
    for name, check in document["checks"].items():
        yield f"* {'holds' if check['held'] else '**does not hold**'}: {name.replace('_', ' ')}: {check['says']}"
    yield ""


def text_of(documents: Documents) -> str:
    """The text of RESULTS.md."""
    lines = [
        "# Results",
        "",
        "`python bench/lib/report.py` makes this file from bench/results/*.json. `make bench` measures anew.",
        "",
    ]
    if not documents:
        return "\n".join([*lines, NOTHING])
    lines += [*machines(documents), *first_page(documents), "## Numbers to reach", "", *to_reach(documents), ""]
    for name, letter in letters(documents).items():
        drawn = [plot.name for plot in PLOTS if plot.suite == name and points(plot, documents)]
        lines += section(documents[name], letter, drawn)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where the documents are")
    parser.add_argument("--out", type=Path, default=BENCH / "RESULTS.md", metavar="FILE", help="the file to write")
    parser.add_argument("--check", action="store_true", help="compare FILE with the documents, and write nothing")
    args = parser.parse_args()
    documents = documents_of(args.results)
    text = text_of(documents)
    lines = {plot: found for plot in PLOTS if (found := points(plot, documents))}
    directory = args.out.parent / "plots"
    if args.check:
        missing = [plot.name for plot in lines if not (directory / f"{plot.name}.svg").exists()]
        if args.out.exists() and args.out.read_text() == text and not missing:
            return 0
        what = f"{args.out} and its plots are" if missing else f"{args.out} is"
        print(f"report: {what} not what {args.results} gives: run `python bench/lib/report.py`", file=sys.stderr)
        return 1
    args.out.write_text(text)
    try:
        for plot, found in lines.items():
            directory.mkdir(exist_ok=True)
            draw(plot, found, directory / f"{plot.name}.svg")
    except ImportError:
        print("report: no plots without matplotlib: pip install 'timerd[bench]'", file=sys.stderr)
    print(f"report: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
