"""The versions of layout, protocol and journal, and what each of them is compatible with."""

from __future__ import annotations

from timerd_shm.declare import journal, layout, wire


def versions() -> list[str]:
    """The versions of layout, protocol and journal, and what each of them is compatible with."""
    older = sorted({version for version, _ in journal.OLDER})
    read = f"{older[0]} to {older[-1]}" if len(older) > 1 else str(older[0])
    return [
        "| | this version | works with | with any other version |",
        "|---|---|---|---|",
        f"| layout of the arena | {layout.LAYOUT_VERSION} | layout {layout.LAYOUT_VERSION} with fingerprint "
        f"0x{layout.fingerprint():08x} alone | the daemon does not start (exit status 5); a client goes on without a "
        "map of the arena; `timerctl` refuses to read it |",
        f"| protocol | {wire.PROTOCOL_VERSION} | protocol {wire.PROTOCOL_VERSION} alone | the client gets "
        "UnsupportedVersionError; its commands wait |",
        f"| journal | {journal.JOURNAL_VERSION} | written: {journal.JOURNAL_VERSION} alone; read: {read} as well; "
        f"audited by `timerctl`: {journal.JOURNAL_VERSION} alone | the daemon begins a new segment; readers raise "
        "JournalError |",
    ]


PARTS = {"howto/upgrading.md": {"versions": versions}}
