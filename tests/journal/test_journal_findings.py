"""What the audit says of a journal that is not whole: names for numbers and bytes, and the cause before its effects."""

from __future__ import annotations

from pathlib import Path

from commands import Key, Register
from harness import MS, S, fire
from journals import JournaledRig, numbered, settle
from timerd_client.audit.journal import audit_journal
from timerd_client.audit.words import differing, name_of, shown, shown_id, shown_key, shown_owner, shown_owners
from timerd_shm.declare.states import Outcome
from timerd_shm.read.segment import segment_path, segments_of


def played(directory: Path, turns: int = 15) -> JournaledRig:
    """Operations that settle some turns after they were registered, over several segments. It has ended."""
    rig = JournaledRig(directory, capacity=512, quota_operations=512)
    client = rig.client()
    for turn in range(turns):
        for key in numbered(turn * 20, 20):
            client.issue(Register((Key(key),), timeout_ns=100 * S))
        rig.turn(rig.now_ns + MS)
        settle(rig, client, *numbered(10_000 + turn * 20, 10))
        if turn % 5 == 4:
            for key in numbered((turn - 4) * 20, 100):
                client.issue(fire(key))
            rig.turn(rig.now_ns + MS)
            rig.acknowledge(client)
    rig.end()
    return rig


# words ----------------------------------------------------------------------------------------------------------------


def test_texts_keys_owners_and_codes_are_named_as_people_read_them() -> None:
    incarnation = bytes(range(16))
    assert shown(b"session/9") == shown("session/9") == "'session/9'"
    assert shown(b"\xff'") == '"\\\\xff\'"'
    assert (shown(None), shown_id(None), shown_id(b"\x01\xab"), shown_id("01ab")) == (
        *("none", "no id", "id 01ab", "id 01ab"),
    )
    assert shown_key((b"default", b"k")) == "'k' of purgatory 'default'"
    assert shown_owners([(incarnation + b"web-1", False), None]) == "client 'web-1' (00010203) or nobody"
    assert shown_owner((b"billing", True)) == "group 'billing'"
    assert shown_owner(("web-1", False)) == "client 'web-1'"
    assert shown_owner((None, False)) == "a text that cannot be read"
    assert (name_of(Outcome, 2), name_of(Outcome, 99)) == ("EXPIRED", "99")
    names, found = ("pid", "owner", "key"), (1, (incarnation + b"a", False), (b"p", b"k"))
    assert differing(names, found, (2, *found[1:])) == "pid is 1, and should be 2"
    assert differing(names, found, (1, None, (b"p", b"l"))) == (
        "owner is client 'a' (00010203), and should be None, "
        "key is 'k' of purgatory 'p', and should be 'l' of purgatory 'p'"
    )


def test_findings_show_neither_bytes_nor_numbers_of_outcomes(tmp_path: Path) -> None:
    played(tmp_path)
    segment_path(tmp_path, segments_of(tmp_path)[1]).unlink()
    told = [finding.what for finding in audit_journal(tmp_path).wrong]
    assert "it settles as COMPLETED, and no row that was read registers it" in told
    assert not [what for what in told if "b'" in what or "outcome 1" in what]
