"""The screen of top, drawn by Textual.

Textual is kept and typed, sorts and scrolls tables, takes the mouse, and can be played by tests without a terminal.
Rich alone would draw the same, but has no keys and no tables to move in; curses would leave all of it to us.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from timerctl.instance import NS, open_arena
from timerctl.listing import Row
from timerctl.look import ops
from timerctl.look.find import number_of
from timerctl.show.table import Column
from timerd_shm.declare.errors import TimerdError
from timerd_shm.host.paths import InstancePaths

from . import frame
from .hot import HotKeys
from .rows import explained, operations_of
from .samples import Samples
from .verdict import Finding, Level, verdict
from .views import VIEWS, Reading, Source, View

SENTENCES: Final = 3
COLOURS: Final = {Level.FINE: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "red"}


class Explanation(ModalScreen[None]):
    """Text over the screen, until Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "back")]
    CSS = "Explanation {align: center middle;} #text {width: 90%; height: 80%; border: round $primary; padding: 0 1;}"

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        with VerticalScroll(id="text"):
            yield Static("\n".join(self._lines), markup=False)


class Operations(ModalScreen[None]):
    """The operations behind a row. Enter explains one of them."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "back")]
    CSS = "Operations {align: center middle;} #of {width: 95%; height: 85%; border: round $primary;}"

    def __init__(self, title: str, rows: list[Row], paths: InstancePaths, instance: str | None) -> None:
        super().__init__()
        self._title, self._rows, self._paths, self._instance = title, rows, paths, instance

    def compose(self) -> ComposeResult:
        """A table."""
        table: DataTable[Text] = DataTable(id="of", cursor_type="row", zebra_stripes=True)
        table.border_title = self._title
        fill(table, ops.OPERATIONS_TABLE.columns, [ops.cells_of(row) for row in self._rows])
        yield table

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Explain the operation."""
        event.stop()
        number = self._rows[event.cursor_row]["number"]
        self.app.push_screen(Explanation(explained(self._paths, number, self._instance)))


class Screen(App[None]):
    """The screen of an instance."""

    class Looked(Message):
        """A look at the arena is over. It has these findings."""

        def __init__(self, found: list[Finding]) -> None:
            super().__init__()
            self.found = found

    TITLE = "timerctl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title {text-style: bold;}
    #parts {height: auto;}
    #parts Static {width: auto; margin: 1 3 1 0;}
    #views {color: $text-muted;}
    #filter {display: none; height: 3;}
    DataTable {height: 1fr;}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(view.key, f"view('{view.name}')", view.name) for view in VIEWS),
        Binding("s", "order(1)", "sort"),
        Binding("S", "order(-1)", "sort back", show=False),
        Binding("slash", "filter", "filter"),
        Binding("escape", "no_filter", "all rows", show=False),
        Binding("space", "pause", "stop / go on"),
        Binding("q", "quit", "end"),
    ]

    def __init__(self, paths: InstancePaths, arguments: argparse.Namespace) -> None:
        super().__init__()
        self._paths, self._instance, self._every = paths, arguments.instance, arguments.every / NS
        self._samples, self._hot = Samples(paths), HotKeys()
        self._readings = {view.name: Reading(view) for view in VIEWS}
        self._order = {view.name: 0 for view in VIEWS}
        self._view: View = VIEWS[0]
        self._pattern = ""
        self._shown: list[Row] = []
        self._titles: tuple[str, ...] = ()
        self._stopped = False
        self._looking = threading.Lock()

    # the parts of the screen ------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Title, sentences, three parts, and a table."""
        yield Static(id="title", markup=False)
        yield Static(id="sentences")
        with Horizontal(id="parts"):
            for name in ("rates", "latencies", "limits"):
                yield Static(id=name, markup=False)
        yield Static(id="views")
        yield Input(placeholder="only rows with this text; Escape ends it", id="filter")
        table: DataTable[Text] = DataTable(id="table", cursor_type="row", zebra_stripes=True)
        yield table
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#table", DataTable).focus()
        self.look()
        self.set_interval(self._every, self.look)

    def look(self) -> None:
        """Read the arena in a thread, and show it; unless the last look is not over."""
        if not self._stopped and self._looking.acquire(blocking=False):
            self.run_worker(self._look, thread=True, exit_on_error=True)

    def _look(self) -> None:
        try:
            with open_arena(self._paths) as reader:
                sample = self._samples.read(reader)
                self._hot.look(reader, sample.at_ns)
                self._readings[self._view.name].refresh(Source(reader, sample, self._hot))
            found = verdict(sample, self._samples.kept[0])
        except (OSError, TimerdError) as error:
            found = [Finding(Level.ERROR, f"The arena cannot be read: {error}")]
        finally:
            self._looking.release()
        self.post_message(self.Looked(found))  # from a thread, and without a wait: the screen may have ended meanwhile

    def on_screen_looked(self, looked: Looked) -> None:
        """Show the newest sample, unless the screen is being taken down."""
        if self.query("#title"):
            self.show(looked.found)

    def show(self, found: list[Finding]) -> None:
        """Show the newest sample."""
        if self._samples.kept:
            samples = list(self._samples.kept)
            self.query_one("#title", Static).update(frame.title(samples[-1]))
            self.query_one("#rates", Static).update("\n".join(frame.rates(samples)))
            self.query_one("#latencies", Static).update("\n".join(frame.latencies(samples[-1])))
            self.query_one("#limits", Static).update("\n".join(frame.limits(samples[-1])))
        self.query_one("#sentences", Static).update("\n".join(map(_coloured, found[:SENTENCES])))
        self.show_table()

    def show_table(self) -> None:
        """Show the rows of the present view, in its order."""
        view, orders = self._view, list(self._view.orders)
        order = orders[self._order[view.name] % len(orders)]
        self._shown = view.sorted(self._readings[view.name].rows, order, self._pattern)
        names = "  ".join(
            f"[b]{each.key} {each.name}[/b]" if each is view else f"{each.key} {each.name}" for each in VIEWS
        )
        only = f", only rows with {self._pattern!r}" if self._pattern else ""
        pause = "   STOPPED: Space goes on" if self._stopped else ""
        self.query_one("#views", Static).update(f"{names}   sorted by {order}{_escaped(only)}{pause}")
        table = self.query_one("#table", DataTable)
        titles = tuple(column.title for column in view.table.columns)
        if titles != self._titles:
            table.clear(columns=True)
            self._titles = titles
        fill(table, view.table.columns, [view.cells(row) for row in self._shown])

    # keys -------------------------------------------------------------------------------------------------------------

    def action_view(self, name: str) -> None:
        """Show another table."""
        self._view = next(view for view in VIEWS if view.name == name)
        self.show_table()
        self.look()

    def action_order(self, step: int) -> None:
        """Sort by the next column that the view can be sorted by."""
        self._order[self._view.name] += step
        self.show_table()

    def action_filter(self) -> None:
        """Ask for a text."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_no_filter(self) -> None:
        """Show all rows."""
        field = self.query_one("#filter", Input)
        field.value, field.display = "", False
        self.query_one("#table", DataTable).focus()

    def action_pause(self) -> None:
        """Stop to look, or go on."""
        self._stopped = not self._stopped
        self.show_table()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        self._pattern = event.value
        self.show_table()

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the table."""
        self.query_one("#filter", Input).display = bool(self._pattern)
        self.query_one("#table", DataTable).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Explain the row: a call as `timerctl explain` does, others by their operations."""
        if not 0 <= event.cursor_row < len(self._shown):
            return
        row = self._shown[event.cursor_row]
        try:
            if self._view.name == "calls":
                self.push_screen(
                    Explanation(
                        explained(self._paths, number_of(row["op"] >> 32, row["op"] & 0xFFFFFFFF), self._instance)
                    )
                )
                return
            with open_arena(self._paths) as reader:
                rows = operations_of(reader, row)
        except (OSError, TimerdError) as error:
            self.push_screen(Explanation([str(error)]))
            return
        if not rows:
            self.push_screen(
                Explanation([f"No operation belongs to this row: {' '.join(map(str, self._view.cells(row)))}"])
            )
            return
        title = f"{len(rows)} operations of {self._view.name.removesuffix('s')} {self._view.cells(row)[0]}"
        self.push_screen(Operations(title, rows, self._paths, self._instance))


def fill(table: DataTable[Text], columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """Show these rows. The cursor and the place to which the user has scrolled stay."""
    if not table.columns:
        table.add_columns(*(Text(column.title, justify=_side(column)) for column in columns))
    at, x, y = table.cursor_row, table.scroll_x, table.scroll_y
    table.clear()
    for row in rows:
        # Text has no markup: keys and names may have brackets.
        table.add_row(*(Text(str(cell), justify=_side(column)) for cell, column in zip(row, columns, strict=True)))
    if rows:
        table.move_cursor(row=min(at, len(rows) - 1), animate=False, scroll=False)
        table.scroll_to(x, y, animate=False)


def _side(column: Column) -> Literal["left", "right"]:
    return "right" if column.right else "left"


def _coloured(finding: Finding) -> str:
    return f"[{COLOURS[finding.level]}]{_escaped(f'{finding.text} {finding.help}')}[/]"


def _escaped(text: object) -> str:
    """A text without Textual's markup: keys and names may have brackets."""
    return str(text).replace("[", r"\[")
