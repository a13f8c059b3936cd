"""The journal: its kinds of rows, the columns of each, and its files."""

from __future__ import annotations

from typing import Any

from timerd_shm.declare import journal
from timerd_shm.declare.fields import Field, fields, size_of
from timerd_shm.declare.journal import ROWS, TIMES, RowKind

from .text import code, first_sentence, table


def kinds() -> list[str]:
    """A row for each kind: its number, what it says, and its column with the time."""
    rows = (
        (str(int(kind)), f"[{kind.name}](#{anchor(kind)})", about(kind), code(TIMES[kind]) if kind in TIMES else "")
        for kind in ROWS
    )
    return table(("number", "kind", "what it says", "its time"), rows)


def about(kind: RowKind) -> str:
    """The meaning of a row of this kind."""
    return first_sentence(ROWS[kind].__doc__).removeprefix(f"{kind.name}: ")


def rows() -> list[str]:
    """A section for each class of rows, with its columns."""
    lines: list[str] = []
    for record in dict.fromkeys(ROWS.values()):
        lines += [*([""] if lines else []), f"### {title(record)}", "", *text_of(record), ""]
        lines += table(
            ("offset", "column", "type", "what it is", "how the audit checks it"),
            ((*_cells(field), field.about, field.checked) for field in fields(record)),
        )
    return lines


def title(record: type[Any]) -> str:
    """The kinds whose rows have this form: TEXT and CONTINUED."""
    return " and ".join(kind.name for kind, found in ROWS.items() if found is record)


def anchor(kind: RowKind) -> str:
    """The anchor of a kind's section."""
    return title(ROWS[kind]).lower().replace(" ", "-")


def files() -> list[str]:
    """The form of the files: the text of the declarations, and the records that are no rows."""
    text, _, _ = (journal.__doc__ or "").partition("\n\nA new column is declared here")
    _, _, text = text.partition("\n\n")
    lines = [
        f"Version {journal.JOURNAL_VERSION}, fingerprint 0x{journal.journal_fingerprint():08x}.",
        "",
        *text.strip("\n").splitlines(),
    ]
    for record in journal.JOURNAL_RECORDS:
        if record not in ROWS.values():
            lines += ["", f"### {record.__name__} ({size_of(record)} bytes)", "", *text_of(record), ""]
            lines += table(
                ("offset", "field", "type", "what it is"), ((*_cells(field), field.about) for field in fields(record))
            )
    return lines


def text_of(record: type[Any]) -> list[str]:
    """The docstring of a record, in lines."""
    return (record.__doc__ or "").strip().replace("\n    ", "\n").splitlines()


def _cells(field: Field) -> tuple[str, str, str]:
    count = f"[{field.storage.count}]" if field.storage.count > 1 else ""
    return str(field.offset), code(field.name), field.storage.c_type + count


PARTS = {"reference/journal.md": {"kinds": kinds, "rows": rows, "files": files}}
