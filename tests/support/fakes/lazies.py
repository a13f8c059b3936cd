"""A client gets its link from a Lazy (link/lazy.py). This makes the Lazy of a link that a test has made itself."""

from __future__ import annotations

from typing import TypeVar

from timerd_client.discovery.target import target_of
from timerd_client.link.lazy import Lazy
from timerd_client.link.link import Link

LinkT = TypeVar("LinkT", bound=Link)


def lazy_of(link: LinkT) -> Lazy[LinkT]:
    """A Lazy that has this link. The test ends before the Lazy would make another link."""
    return Lazy(target_of("Client", None, {}), type(link), link)
