"""Makes bench/RESULTS.md and its plots from bench/results alone. The same documents give the same bytes.

    python bench/report.py [--results DIR] [--out FILE] [--check]

--check writes nothing. It ends with status 1 when FILE is not what the documents give, or a plot is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import Row, columns_of, is_number, shown
from plots import PLOTS, draw, points
from run import AT_LENGTH, BENCH, RESULTS, SUITES
from targets import TARGETS

NOTHING = "Nothing was measured yet: `make bench`.\n"


def documents_of(directory: Path) -> dict[str, dict[str, Any]]:
    """The documents that exist, by suite, in the order of the suites; what takes long comes last."""
    found = {}
    for name in (*SUITES, *AT_LENGTH):
        path = directory / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text())
    return found


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A table of Markdown."""
    columns = columns_of(rows)
    yield "| " + " | ".join(column.replace("_", " ") for column in columns) + " |"
    yield "|" + "|".join("---:" if is_number(rows, column) else "---" for column in columns) + "|"
    for row in rows:
        yield "| " + " | ".join(shown(row.get(column)).replace("|", "\\|") for column in columns) + " |"


def to_reach(documents: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The table of the numbers to reach, each with the measured figure."""
    yield "| what | target | measured | ratio | reached | by |"
    yield "|---|---:|---:|---:|---|---|"
    for target in TARGETS:
        figure = target.reached(documents)
        sign = ">=" if target.at_least else "<="
        document = documents.get(target.suite)
        command = f"`{document['command']}`" if document else f"`python bench/{target.suite}.py`"
        cells = [target.what, f"{sign} {target.goal:,.12g} {target.unit}".rstrip()]
        if figure is None:
            cells += ["-", "-", "not measured", command]
        else:
            held = "yes" if target.held(figure) else "**no**"
            cells += [f"{shown(float(figure))} {target.unit}".rstrip(), f"{figure / target.goal:.2f}", held, command]
        yield "| " + " | ".join(cells) + " |"


def section(document: dict[str, Any], drawn: Sequence[str]) -> Iterator[str]:
    """The section of one suite."""
    yield f"## {document['suite'].replace('_', ' ')}"
    yield ""
    yield document["about"]
    yield ""
    machine = document["machine"]
    load = ", ".join(f"{value:.2f}" for value in machine["load_average"])
    state = [word for word in ("short", "partial") if document[word]]
    yield (
        f"`{document['command']}`, {document['started']}, {document['seconds']:.0f} s, load average before it {load}"
        + (f". **{', '.join(state).capitalize()} run.**" if state else "")
    )
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


def machines(documents: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The machines of the suites; a single machine is named once."""
    known: dict[str, list[str]] = {}
    for name, document in documents.items():
        machine = document["machine"]
        parts = [machine["cpu"], f"{machine['cores']} cores", f"{machine['memory_bytes'] / (1 << 30):.0f} GiB"]
        parts += [f"Linux {machine['kernel']}", machine["python"], f"libzmq {machine['libzmq']}", machine["compiler"]]
        parts += ["huge pages in /dev/shm"] if machine.get("huge_pages") else []
        parts += [f"commit {machine['commit']}"] if machine["commit"] else []
        known.setdefault(", ".join(parts), []).append(name)
    for text, names in known.items():
        yield f"{', '.join(names)}: {text}." if len(known) > 1 else f"{text}."
        yield ""


def text_of(documents: dict[str, dict[str, Any]]) -> str:
    """The text of RESULTS.md."""
    lines = [
        "# Results",
        "",
        "`python bench/report.py` makes this file from bench/results/*.json. `make bench` measures anew.",
        "",
    ]
    if not documents:
        return "\n".join([*lines, NOTHING])
    lines += [*machines(documents), "## Numbers to reach", "", *to_reach(documents), ""]
    for name, document in documents.items():
        drawn = [plot.name for plot in PLOTS if plot.suite == name and points(plot, documents)]
        lines += section(document, drawn)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where the documents are")
    parser.add_argument("--out", type=Path, default=BENCH / "RESULTS.md", metavar="FILE", help="the file to write")
    parser.add_argument("--check", action="store_true", help="write nothing, and compare")
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
        print(f"report: {what} not what {args.results} gives: run `python bench/report.py`", file=sys.stderr)
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
