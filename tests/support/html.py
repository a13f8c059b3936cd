"""Mistakes in a page of HTML that a browser hides: tags that do not match, names that occur twice, wrong nesting."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"br", "hr", "img", "input", "link", "meta"}
# Elements that may not stand inside of a paragraph, or of another element that takes only text.
BLOCKS = {"details", "div", "figure", "h1", "h2", "p", "section", "table", "ul"}
ONLY_TEXT = {"b", "figcaption", "h1", "h2", "p", "small", "summary"}
PARENTS = {"tr": {"table"}, "td": {"tr"}, "th": {"tr"}, "li": {"ul"}, "figcaption": {"figure"}, "summary": {"details"}}


class _Checked(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        self.wrong += [f"<{tag}> has {name} twice" for name in set(names) if names.count(name) > 1]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag in BLOCKS and (inside := ONLY_TEXT & set(self.open)):
            self.wrong.append(f"<{tag}> is inside of <{min(inside)}>")
        if tag in PARENTS and not (self.open and self.open[-1] in PARENTS[tag]):
            self.wrong.append(f"<{tag}> is not in <{min(PARENTS[tag])}>")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if "svg" not in self.open:
            self.wrong.append(f"<{tag}/> closes itself outside of an image")
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes another element")


def mistakes(page: str) -> list[str]:
    """The mistakes of a page of HTML, a line each."""
    checked = _Checked()
    checked.feed(page)
    checked.close()
    twice = {name for name in checked.ids if checked.ids.count(name) > 1}
    wrong = [*checked.wrong, *(f"<{tag}> is not closed" for tag in checked.open)]
    wrong += [f"the name {name} occurs twice" for name in sorted(twice)]
    if not page.startswith("<!DOCTYPE html>"):
        wrong.append("the page does not begin with its doctype")
    return wrong
