"""timerctl: the tables, times and numbers that it prints and reads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.rig.harness import S
from timerctl.show.table import Column, Table, grid
from timerctl.show.text import columns_of, due_row, duration_ns, size, span
from timerd_shm.read.text import plain


def test_a_table_drops_and_shortens_columns_in_order() -> None:
    table = Table(
        Column("n", right=True), Column("key", flexible=True), Column("a", optional=True), Column("b", optional=True)
    )
    rows = [(7, "x" * 30, "aaaa", "bbbb"), (10, "y", "a", "b")]
    wide = table.lines(rows, 80)
    assert wide == [
        " n  key                             a     b",
        " 7  " + "x" * 30 + "  aaaa  bbbb",
        "10  y                               a     b",
    ]
    assert table.lines(rows, 40)[1] == " 7  " + "x" * 21 + "...  aaaa  bbbb"
    assert table.lines(rows, 24)[1] == " 7  " + "x" * 11 + "...  aaaa"
    assert table.lines(rows, 10)[1] == " 7  " + "x" * 9 + "..."
    assert table.lines([], 80) == ["n  key  a  b"]


def test_a_wrapped_text_continues_below_and_loses_no_word() -> None:
    table = Table(Column("n", right=True), Column("message", flexible=True, wraps=True))
    message = "a frame of 12 bytes is shorter than its header: upgrade the client, or look who sends to this socket"
    lines = table.lines([(7, message), (8, "")], 40)
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(line.removeprefix("7").split()) for line in lines[1:-1]) == message
    assert lines[-1].strip() == "8"
    assert table.lines([(7, message)], 200)[1] == f"7  {message}"


def test_wide_characters_count_twice_in_a_table() -> None:
    table = Table(Column("key", flexible=True), Column("n", right=True))
    rows = [("\u6f22" * 20, 1), ("e\u0301" * 5, 22), ("plain", 333)]
    for width in (20, 40, 80):
        lines = table.lines(rows, width)
        assert {columns_of(line) for line in lines} == {min(width, 45)}, lines


def test_a_grid_uses_the_width() -> None:
    pairs = [(f"name{number}", str(number)) for number in range(7)]
    assert max(map(len, grid(pairs, 80))) <= 80
    assert grid(pairs, 80)[0] == "name0  0   name1  1   name2  2   name3  3   name4  4   name5  5   name6  6"
    assert grid(pairs, 40)[0] == "name0  0   name3  3   name6  6"
    assert grid(pairs, 10) == [f"name{number}  {number}" for number in range(7)]
    assert grid([]) == []


@pytest.mark.parametrize(
    ("text", "ns"), [("30", 30 * S), ("1.5s", 1_500_000_000), ("200 ms", 200_000_000), ("2h", 7200 * S), ("0", 0)]
)
def test_durations_are_read(text: str, ns: int) -> None:
    assert duration_ns(text) == ns


def test_numbers_are_written_for_people() -> None:
    spans = [0, 999, 1_500, 12_345_678, 3 * S, 59_990_000_000, 125 * S, 7_500 * S, 90_000 * S * 3, -1_500]
    assert [span(ns) for ns in spans] == [
        "0 ns", "999 ns", "1.50 us", "12.3 ms", "3.00 s", "60.0 s", "2 min 5 s", "2 h 5 min", "3 d 3 h", "-1.50 us"
    ]  # fmt: skip
    assert [size(count) for count in (0, 1023, 1536, 65_011_712, 1 << 31)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "62.0 MiB",
        "2.0 GiB",
    ]
    assert due_row(None, None) == {"due": None, "due_in_ns": None, "due_in": "never"}
    assert due_row(1_700_000_000_123_456_789, -3)["due"] == "2023-11-14T22:13:20.123Z"
    assert plain(b"caf\xc3\xa9 \xff \n") == r"café \xff \n"


@pytest.mark.long
def test_nothing_is_cut_in_a_pipe() -> None:
    """Another program reads the output of a pipe, and cannot use an id that was cut."""
    program = (
        "from timerctl.show.table import Column, Table, grid\n"
        "table = Table(Column('id', flexible=True), Column('reason', flexible=True, wraps=True))\n"
        "table.print([('i' * 200, 'r ' * 200)])\n"
        "print(*grid([(f'counter {number}', '1') for number in range(20)]), sep='\\n')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    _, row, *cells = ran.stdout.splitlines()
    assert row == "i" * 200 + "  " + ("r " * 200).rstrip()
    assert cells and max(map(len, cells)) <= 80
