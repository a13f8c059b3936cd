"""Checks the arguments of the core's methods. A refusal is an exception with value, limit and remedy (refusals.py).

For example, live_slot() gets slot -1 and raises SessionGoneError. The rooms that this one calls are C, and check
nothing.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity, in_use
from timerd.purgatory.memory.blob cimport blocks_for
from timerd.purgatory.memory.hash cimport key_hash, name_hash
from timerd.purgatory.index.watermarks cimport find_watermark
from timerd.purgatory.index.purgatories cimport (
    find_purgatory, made_by, most_made, open_purgatory, purgatory_is_open, share_of_purgatories,
)
from timerd.purgatory.members.clients cimport free_client, is_live
from timerd.purgatory.members.accounts cimport find_user
from timerd.purgatory.members.membership cimport may_listen, open_group, set_calls, set_listening
from timerd.purgatory.members.lifecycle cimport (
    Facts, find_client, free_slot, name_purgatory, open_client, renew_session, share_of_slots, slots_of,
)
from timerd.purgatory.turn.duty_cycle cimport take_time
from timerd.purgatory.turn.reclaim cimport begin_reclaim
from timerd.purgatory.members.state cimport ROOM_BYTES
from timerd.purgatory.operation.eviction cimport EVICTED, room_for
from timerd.purgatory.operation.letters cimport empty_deserted
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    enum { PRESENT = 1 << CLIENT_STATE_LIVE | 1 << CLIENT_STATE_SILENT };  /* states of a connected client */
    """
    enum:
        PRESENT


cdef inline object refusals():
    """The module refusals.py. It is imported when something is refused: a .pxd file has no names of Python."""
    from timerd.purgatory import refusals as module
    return module


# Clients.


cdef inline uint32_t live_slot(Arena *a, int slot) except? 0xFFFFFFFF:
    if slot < 0 or slot >= <int>capacity(a, REGION_CLIENTS) or not is_live(a, slot):
        raise refusals().no_live_client(slot)
    return slot


cdef inline uint32_t tombstone_slot(Arena *a, int slot) except? 0xFFFFFFFF:
    if slot < 0 or slot >= <int>capacity(a, REGION_CLIENTS) or a.clients[slot].state != CLIENT_STATE_TOMBSTONE:
        raise refusals().no_tombstone(slot)
    return slot


cdef inline int slot_of(Arena *a, bytes wanted, bint by_session, uint32_t states) except -2:
    """The slot of the client with `wanted` as session hash or incarnation, in one of these states; -1 = no slot."""
    if len(wanted) != 16:
        raise refusals().not_sixteen_bytes(len(wanted))
    return find_client(a, PyBytes_AS_STRING(wanted), by_session, states)


cdef inline Facts facts_of(
    Arena *a, bytes name, uint32_t pid, uint64_t start_ticks, uint64_t pid_namespace, uint32_t orphans,
    uint64_t lease_ns, uint32_t takeover_ms, uint64_t wall_ns, uint32_t group, bint listens, uint32_t maker_pid,
    uint64_t maker_start_ticks, uint32_t uid,
) except *:
    """The facts about a client for open_client() and resume_client(). They point into `name`."""
    cdef Facts facts
    if len(name) > NAME_SIZE_MAX or orphans >= ORPHANS_COUNT:
        raise refusals().invalid_client()
    if group > capacity(a, REGION_GROUPS) or (group and not a.groups[group - 1].state):
        raise refusals().unknown_group(group)
    if not group and (listens or orphans == ORPHANS_GROUP):
        raise refusals().needs_a_group()
    facts.name, facts.name_length = PyBytes_AS_STRING(name), <uint32_t>len(name)
    facts.pid, facts.start_ticks, facts.pid_namespace = pid, start_ticks, pid_namespace
    facts.lease_ns, facts.takeover_ms, facts.wall_ns = lease_ns, takeover_ms, wall_ns
    facts.orphans, facts.group, facts.listens = orphans, group, listens
    facts.maker_pid, facts.maker_start_ticks, facts.uid = maker_pid, maker_start_ticks, uid
    return facts


cdef inline bint is_maker(Arena *a, uint32_t slot, Facts *facts) noexcept:
    """Whether the slot already counts in the share of the process that `facts` name as the client's maker."""
    cdef ClientRecord *c = a.clients + slot
    return c.maker_pid == facts.maker_pid and c.maker_start_ticks == facts.maker_start_ticks


cdef inline int check_share(Arena *a, Facts *facts) except -1:
    """Refuse a client whose process has all slots of its share. If one of them is a tombstone, free it instead."""
    cdef int tombstone
    cdef uint32_t share = share_of_slots(a, facts.maker_pid)
    if slots_of(a, facts.maker_pid, facts.maker_start_ticks, &tombstone) >= share:
        if tombstone < 0:
            raise refusals().too_many_clients(facts.maker_pid, share, capacity(a, REGION_CLIENTS))
        free_client(a, tombstone)
    return 0


cdef inline int open_slot(Arena *a, bytes incarnation, bytes session_hash, Facts *facts, uint64_t now_ns) except -1:
    """The slot of a client that says hello: the client's own if it has one, else a free slot."""
    cdef int slot
    if len(incarnation) != 16 or len(session_hash) != 16:
        raise refusals().no_identity()
    take_time(a, now_ns)
    slot = find_client(a, PyBytes_AS_STRING(incarnation), False, PRESENT)
    if slot >= 0:
        renew_session(a, slot, PyBytes_AS_STRING(session_hash), now_ns)
        return slot
    check_share(a, facts)
    slot = free_slot(a)
    if slot < 0:
        raise refusals().clients_are_full(capacity(a, REGION_CLIENTS))
    open_client(a, slot, PyBytes_AS_STRING(incarnation), PyBytes_AS_STRING(session_hash), facts)
    return slot


# Groups and purgatories.


cdef inline uint32_t group_named(Arena *a, bytes name, uint32_t pid, uint64_t start_ticks, uint32_t uid) except 0:
    """The group (index + 1) of that name, which is made if there is none."""
    cdef uint32_t made, left, group
    if not 1 <= len(name) <= NAME_SIZE_MAX:
        raise refusals().invalid_name("group", len(name))
    group = open_group(a, PyBytes_AS_STRING(name), <uint32_t>len(name), pid, start_ticks, uid, &made, &left)
    if group == 0 and not made and not left and empty_deserted(a):
        group = open_group(a, PyBytes_AS_STRING(name), <uint32_t>len(name), pid, start_ticks, uid, &made, &left)
    if left:
        raise refusals().too_many_left_groups(uid if find_user(a, uid) else UID_UNKNOWN, left, capacity(a, REGION_GROUPS))
    if made:
        raise refusals().too_many_groups(pid, made, capacity(a, REGION_GROUPS))
    if group == 0:
        raise refusals().groups_are_full(capacity(a, REGION_GROUPS))
    return group


cdef inline int new_purgatory(Arena *a, bytes name, int slot) except -1:
    """Make a purgatory, and charge it to the process of the live client in `slot`; slot -1: charge it to nobody."""
    cdef uint32_t count = capacity(a, REGION_PURGATORIES), pid = 0, made = 0, share = count
    cdef uint64_t start_ticks = 0
    cdef int index
    if slot >= 0:
        pid, start_ticks = a.clients[slot].maker_pid, a.clients[slot].maker_start_ticks
        made, share = made_by(a, pid, start_ticks), share_of_purgatories(count, pid)
        if 2 * made >= share or 2 * in_use(a, REGION_PURGATORIES) >= count:
            begin_reclaim(a)  # before purgatories are short, because a reclaim takes some turns
    if made >= share:
        raise refusals().too_many_purgatories(pid, made, count)
    index = open_purgatory(a, PyBytes_AS_STRING(name), <uint32_t>len(name), pid, start_ticks)
    if index < 0:
        made = most_made(a, &pid)
        raise refusals().purgatories_are_full(count, pid, made)
    return index


cdef inline int purgatory_named(Arena *a, bytes name, int slot) except -1:
    """The purgatory of that name, made if there is none. The live client in `slot` (-1: none) knows it from now on."""
    cdef int index
    if not 1 <= len(name) <= NAME_SIZE_MAX:
        raise refusals().invalid_name("purgatory", len(name))
    if slot >= 0:
        live_slot(a, slot)
    index = find_purgatory(a, PyBytes_AS_STRING(name), <uint32_t>len(name))
    if index < 0:
        index = new_purgatory(a, name, slot)
    if slot >= 0:
        name_purgatory(a, slot, index)
    return index


cdef inline object watermark_found(Arena *a, int purgatory, bytes key):
    """(watermark, index of its record, hash) of a key, or None. Without a watermark, no hash is returned."""
    cdef const uint8_t *name = <const uint8_t *>PyBytes_AS_STRING(key)
    cdef uint32_t length = <uint32_t>len(key), number
    cdef uint64_t hash
    if purgatory < 0 or not purgatory_is_open(a, purgatory):
        raise refusals().unknown_purgatory(purgatory)
    hash = key_hash(a.seed, purgatory, name, length)
    number = find_watermark(a, hash, purgatory, name, length)
    if number == 0:
        return None
    return a.watermarks[number - 1].watermark, number - 1, hash


cdef inline int accept_outcomes(Arena *a, uint32_t slot, bint listens, uint64_t now_ns) except -1:
    """Let the member take outcomes of its group, or none. Returns whether it takes them from now on."""
    if a.clients[slot].group == 0:
        raise refusals().in_no_group("outcomes")
    if listens and not may_listen(a.clients + slot):
        return False
    take_time(a, now_ns)
    set_listening(a, slot, listens)
    return listens


cdef inline int accept_calls(Arena *a, uint32_t slot, int most, int purgatory, list names, uint64_t now_ns) except -1:
    """Let the member take `most` calls of its group at a time, of these names. Returns how many it may take."""
    cdef uint64_t hashes[HANDLED_NAMES_MAX]
    cdef uint32_t count = 0, evicted = 0
    if a.clients[slot].group == 0:
        raise refusals().in_no_group("calls")
    if not 0 <= most <= CALLS_HELD_MAX or len(names) > HANDLED_NAMES_MAX:
        raise refusals().too_many_calls(len(names), most)
    if purgatory < 0 or not purgatory_is_open(a, purgatory):
        raise refusals().unknown_purgatory(purgatory)
    if most and a.clients[slot].calls_held and not a.clients[slot].calls:
        return 0  # the member has stopped, and the sweep has not requeued everything that it held
    for name in names if most else ():  # bound: HANDLED_NAMES_MAX names
        if not 1 <= len(name) <= KEY_SIZE_MAX:
            raise refusals().invalid_call_name(len(name))
        hashes[count] = name_hash(purgatory, <const uint8_t *>PyBytes_AS_STRING(name), <uint32_t>len(name))
        count += 1
    take_time(a, now_ns)
    while room_for(a, ROOM_BYTES, blocks_for(count * sizeof(uint64_t)), &evicted) == EVICTED:  # bound: EVICTED_AT_ONCE
        pass  # no record was looked up that this could have freed
    if not set_calls(a, slot, most, hashes, count):
        raise refusals().no_room_for_names(capacity(a, REGION_BLOCKS), count)
    return most


# Counters.


cdef inline uint64_t *daemon_counter(Arena *a, uint32_t counter) except NULL:
    if counter >= DAEMON_COUNTERS_MAX:
        raise refusals().unknown_counter(counter)
    return a.daemon + counter
