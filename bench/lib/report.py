"""Make bench/RESULTS.md, its pictures, bench/tables and the figures in all pages, from bench/results.

The same documents give the same bytes. Kafka's own figures, which no suite measures, are in quoted.py.

    python bench/lib/report.py [--results DIR] [--out FILE] [--check]

The tables go to a folder `tables` beside FILE, the pictures to a folder `plots`. Other tables and pictures there
are removed. The figures in the pages of the tree (figures.py) are written only together with bench/RESULTS.md itself.
--check writes nothing. It ends with status 1, and names the files, if a file differs from what the documents give.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from textwrap import wrap
from typing import Any, TypeAlias

from bench.lib.common import ROOT, Row, columns_of, is_number, shown
from bench.lib.figures import NotMeasuredError, WrongNameError, filled, pages, versions_of
from bench.lib.pictures import PICTURES, Picture
from bench.lib.plots import PLOTS, draw, points
from bench.lib.quoted import KAFKA_OF_THE_HOUR, MACHINE_OF_THE_HOUR
from bench.lib.targets import TARGETS, Target

Document: TypeAlias = dict[str, Any]  # of one suite (common.py)
Documents: TypeAlias = dict[str, Document]  # by suite
BENCH = ROOT / "bench"
RESULTS = BENCH / "results"
PAGE = BENCH / "RESULTS.md"
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
COMMANDS = {"gate": "python bench/suites/overload.py --gate", "kafka": "make accept-kafka"}  # of the others: the suite
# For the list of tables: the subject of a suite that measures something else without its option.
WHAT = {"gate": "Attacks by hostile neighbours: their effect on other clients, and on the daemon's CPU and memory."}
WIDTH = 120
MADE = "`python bench/lib/report.py` makes this page from bench/results."
KAFKA = (
    "Kafka's purgatory is another program, and no suite here runs it. It was measured in process, without sockets and "
    f"clients, with the article's load. The machine was {MACHINE_OF_THE_HOUR}. The figures are the least and the most "
    "of one hour's runs."
)


def documents_of(directory: Path) -> Documents:
    """The documents that exist, by suite, in the order of the suites; long ones come last."""
    paths = {name: directory / f"{name}.json" for name in (*SUITES, *AT_LENGTH)}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    columns = columns_of(rows)
    yield "| " + " | ".join(column.replace("_", " ") for column in columns) + " |"
    yield "|" + "|".join("---:" if is_number(rows, column) else "---" for column in columns) + "|"
    for row in rows:
        yield "| " + " | ".join(shown(row.get(column)).replace("|", "\\|") for column in columns) + " |"


def paragraph(text: str, indent: str = "") -> list[str]:
    """A text in lines that are no longer than those of other pages."""
    return wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def letters(documents: Documents) -> dict[str, str]:
    """The letter of each suite's machine."""
    machines = list(dict.fromkeys(machine_of(document) for document in documents.values()))
    return {name: ascii_uppercase[machines.index(machine_of(document))] for name, document in documents.items()}


def machine_of(document: Document) -> str:
    """The machine of a suite."""
    machine = document["machine"]
    parts = [machine["cpu"], f"{machine['cores']} cores", f"{machine['memory_bytes'] / (1 << 30):.0f} GiB"]
    parts += [f"Linux {machine['kernel']}", machine["python"], f"libzmq {machine['libzmq']}", machine["compiler"]]
    parts += ["huge pages in /dev/shm"] if machine.get("huge_pages") else []
    return ", ".join(parts)


def how(document: Document, letter: str) -> str:
    """How a suite was measured: command, machine, time, load of the machine, and whether the run was whole."""
    load = ", ".join(f"{value:.2f}" for value in document["machine"]["load_average"])
    state = [word for word in ("short", "partial") if document[word]]
    line = f"`{document['command']}`, machine {letter}, {document['started']}, {document['seconds']:.0f} s"
    line += f", commit {document['machine']['commit'] or 'unknown'}, load average before it {load}"
    return line + (f". **{', '.join(state).capitalize()} run.**" if state else "")


def command_of(suite: str) -> str:
    """The command that measures a suite."""
    return COMMANDS.get(suite, f"python bench/suites/{suite}.py")


# the page ------------------------------------------------------------------------------------------------------------


def page(documents: Documents, svgs: Mapping[str, str]) -> Iterator[str]:
    """The lines of RESULTS.md."""
    yield from ("# Results", "")
    yield from paragraph(
        f"{MADE} `make bench` measures anew. Each picture names the command and the machine. The [tables](#tables) "
        "have every figure, and [targets](tables/targets.md) has the numbers to reach. Do not compare figures of two "
        "machines, or of two hours of one machine, with each other."
    )
    for picture in PICTURES:
        yield from ("", f"## {picture.title}", "")
        yield from shown_on_page(picture, documents, svgs)
    yield from ("", "## Tables", "")
    yield from list_of_tables(documents)
    yield from ("", "## Machines", "")
    marks = letters(documents)
    for letter in sorted(set(marks.values())):
        suite = next(name for name, mark in marks.items() if mark == letter)
        yield from paragraph(f"* Machine {letter}: {machine_of(documents[suite])}.", "  ")
    yield ""


def shown_on_page(picture: Picture, documents: Documents, svgs: Mapping[str, str]) -> Iterator[str]:
    """A picture with its text, and how its figures were measured."""
    if picture.name not in svgs:
        suites = [suite for suite in picture.suites if suite not in documents] or picture.suites
        yield f"Not measured: {', '.join(f'`{command_of(suite)}`' for suite in suites)}."
        return
    marks = letters(documents)
    yield from (f"![{picture.title}](plots/{picture.name}.svg)", "")
    yield from paragraph(picture.says(documents))
    yield ""
    for suite in picture.suites:
        document = documents[suite]
        measured = f"* [{suite}](tables/{suite}.md): `{document['command']}`, machine {marks[suite]}"
        measured += f", {document['started'][:10]}"
        if picture.compares:
            measured += f". Versions: {versions_of(document) or 'this run did not note them'}"
        yield from paragraph(f"{measured}.", "  ")


def list_of_tables(documents: Documents) -> Iterator[str]:
    """A row for each suite."""
    marks = letters(documents)
    reached = [target for target in TARGETS if is_reached(target, documents)]
    yield "| table | what it measures | machine | day | checks that hold |"
    yield "|---|---|---|---|---|"
    yield f"| [targets](tables/targets.md) | numbers to reach: {len(reached)} of {len(TARGETS)} are reached | | | |"
    for name, document in documents.items():
        about = WHAT.get(name) or document["about"].split("\n\n")[0]
        first = about.replace("\n", " ").replace("|", "\\|")
        checks = [check["held"] for check in document["checks"].values()]
        held = f"{sum(checks)} of {len(checks)}" if checks else ""
        if document["partial"] or document["short"]:
            held = f"{held} (the run was not whole)".strip()
        yield f"| [{name}](tables/{name}.md) | {first} | {marks[name]} | {document['started'][:10]} | {held} |"


# tables --------------------------------------------------------------------------------------------------------------


def section(document: Document, letter: str, drawn: Sequence[str]) -> Iterator[str]:
    """The page of one suite."""
    yield from (f"# {document['suite'].replace('_', ' ')}", "", document["about"], "")
    yield from paragraph(how(document, letter))
    yield from ("", f"{MADE} [RESULTS.md](../RESULTS.md#machines) has the machines.")
    if versions := versions_of(document):
        yield ""
        yield from paragraph(f"Versions: {versions}.")
    for name, rows in document["tables"].items():
        yield from ("", f"## {name.replace('_', ' ')}", "")
        yield from table(rows)
    if document["suite"] == "article":
        yield from ("", "## Kafka's own figures", "")
        yield from paragraph(KAFKA)
        yield ""
        yield from table([KAFKA_OF_THE_HOUR])
    for file in drawn:
        yield from ("", f"![{file}](../plots/{file}.svg)")
    if document["checks"]:
        yield ""
    for name, check in document["checks"].items():
        holds = "holds" if check["held"] else "**does not hold**"
        yield from paragraph(f"* {holds}: {name.replace('_', ' ')}: {check['says']}", "  ")
    yield ""


def is_reached(target: Target, documents: Documents) -> bool:
    figure = target.reached(documents)
    return figure is not None and target.held(figure)


def to_reach(documents: Documents) -> Iterator[str]:
    """The page of the numbers to reach, each with the measured figure and its machine."""
    marks = letters(documents)
    yield "# Numbers to reach"
    yield ""
    yield f"{MADE} The goals are in bench/lib/targets.py."
    yield ""
    yield "| what | target | measured | ratio | reached | machine | by |"
    yield "|---|---:|---:|---:|---|---|---|"
    for target in TARGETS:
        figure = target.reached(documents)
        sign = ">=" if target.at_least else "<="
        document = documents.get(target.suite)
        command = f"`{document['command'] if document else command_of(target.suite)}`"
        cells = [target.what, f"{sign} {target.goal:,.12g} {target.unit}".rstrip()]
        if figure is None:
            cells += ["-", "-", "not measured", "-", command]
        else:
            held = "yes" if target.held(figure) else "**no**"
            cells += [f"{shown(float(figure))} {target.unit}".rstrip(), f"{figure / target.goal:.2f}", held]
            cells += [marks[target.suite], command]
        yield "| " + " | ".join(cells) + " |"
    yield ""


# files ---------------------------------------------------------------------------------------------------------------


def drawings(documents: Documents) -> dict[str, str]:
    """The text of each picture and plot that can be drawn, by name."""
    found = {plot.name: draw(plot, lines) for plot in PLOTS if (lines := points(plot, documents))}
    for picture in PICTURES:
        try:
            picture.says(documents)
            if all(suite in documents for suite in picture.suites):
                found[picture.name] = picture.draw(documents).text()
        except NotMeasuredError:
            continue
    return found


def files(documents: Documents, out: Path) -> dict[Path, str]:
    """Everything that follows from the documents: path and text."""
    svgs = drawings(documents)
    plots, tables = out.parent / "plots", out.parent / "tables"
    found = {out: "\n".join(page(documents, svgs)), tables / "targets.md": "\n".join(to_reach(documents))}
    for name, letter in letters(documents).items():
        drawn = [plot.name for plot in PLOTS if plot.suite == name and plot.name in svgs]
        found[tables / f"{name}.md"] = "\n".join(section(documents[name], letter, drawn))
    found |= {plots / f"{name}.svg": text for name, text in svgs.items()}
    if out.resolve() == PAGE:
        found |= {path: filled(path.read_text(), documents, str(path.relative_to(ROOT))) for path in pages()}
    return found


def left_over(found: Mapping[Path, str], out: Path) -> list[Path]:
    """Tables and pictures that no document gives any longer."""
    there = [*(out.parent / "tables").glob("*.md"), *(out.parent / "plots").glob("*.svg")]
    return [path for path in there if path not in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where the documents are")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help="the page to write")
    parser.add_argument("--check", action="store_true", help="compare the files with the documents, and write nothing")
    args = parser.parse_args()
    try:
        found = files(documents_of(args.results), args.out)
    except WrongNameError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    stale = [path for path, text in found.items() if not path.exists() or path.read_text() != text]
    gone = left_over(found, args.out)
    if args.check:
        for path in (*stale, *gone):
            print(f"report: {path} is not what {args.results} gives: run `python bench/lib/report.py`", file=sys.stderr)
        return 1 if stale or gone else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found[path])
    for path in gone:
        path.unlink()
    print(f"report: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
