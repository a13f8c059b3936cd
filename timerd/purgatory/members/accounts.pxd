"""Accounts: who pays for an operation of a group. Its maker does, and after the maker's end the maker's user.

For example, a client of user 1000 registers an operation for the group "web". The operation is charged to the group, and
to account 7, because the client has slot 7. The client ends. The sweep charges the operation to the account of user
1000's ended clients for "web". So the next client in slot 7 begins with nothing.

An operation that a group has adopted is charged to the ended clients' account at once, because its owner has ended. An
operation that its ended owner has left to nobody (orphans="keep") is charged to an account of its user, too.
"""

from libc.stdint cimport int64_t, uint32_t
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.nodes cimport first_node
from timerd.purgatory.memory.transaction cimport TD_DEFECT, td_put
from timerd_shm.generated.records cimport *


cdef inline uint32_t left_account(Arena *a, uint32_t user, uint32_t group) noexcept nogil:
    """The account (index) of a user's ended clients for a group (index)."""
    return capacity(a, REGION_CLIENTS) + user * capacity(a, REGION_GROUPS) + group


cdef inline uint32_t kept_account(Arena *a, uint32_t user) noexcept nogil:
    """The account (index) of the operations that a user's ended clients have left without an owner."""
    return left_account(a, capacity(a, REGION_USERS), 0) + user


cdef inline AccountRecord *account_of(Arena *a, OpRecord *op) noexcept nogil:
    """The account that pays for an operation of a group, or for one without an owner."""
    return a.accounts + (first_node(op).account - 1)


cdef inline void charge_account(
    Arena *a, OpRecord *op, int pending, int settled, int nodes, int64_t bytes
) noexcept nogil:
    """Charge an operation to the account that it names. Its id is charged elsewhere."""
    cdef AccountRecord *account = account_of(a, op)
    account.pending += pending
    account.outcomes += settled
    account.nodes += nodes
    account.bytes_held += bytes


cdef inline void fill_account(OpRecord *op, uint32_t slot) noexcept nogil:
    """Let the client that registers an operation for its group pay for it. The first node is filled already."""
    first_node(op).account = slot + 1


cdef inline void stage_account(Arena *a, OpRecord *op, uint32_t account) noexcept nogil:
    """Stage that this account (index) pays for an operation."""
    cdef WatchNode *node = first_node(op)
    td_put(&a.tx, WatchNode_word_account(node), WatchNode_with_account(WatchNode_word_account(node)[0], account + 1))


cdef inline bint is_left(Arena *a, OpRecord *op) noexcept nogil:
    """Whether an operation of a group is charged to a client that has ended."""
    cdef uint32_t account = first_node(op).account - 1
    if account >= capacity(a, REGION_CLIENTS) or TD_DEFECT(DEFECT_CHARGED_TO_THE_SLOT):
        return False
    return a.clients[account].state == CLIENT_STATE_DEAD


cdef inline bint has_made(Arena *a, uint32_t slot) noexcept nogil:
    """Whether the account of a client that has ended still pays for operations."""
    cdef AccountRecord *account = a.accounts + slot
    return (account.pending != 0 or account.outcomes != 0) and not TD_DEFECT(DEFECT_CHARGED_TO_THE_SLOT)


cdef inline void clear_account(AccountRecord *account) noexcept nogil:
    account.pending = account.outcomes = account.nodes = account.ids = 0
    account.bytes_held = 0


cdef inline bint user_holds_nothing(Arena *a, uint32_t user) noexcept nogil:
    """Whether a user has neither a client nor an operation that an ended client of the user has made."""
    cdef AccountRecord *left = a.accounts + left_account(a, user, 0)
    cdef uint32_t i
    for i in range(capacity(a, REGION_CLIENTS)):  # bound: clients
        if a.clients[i].state != CLIENT_STATE_FREE and a.accounts[i].user == user:
            return False
    for i in range(capacity(a, REGION_GROUPS)):  # bound: groups
        if left[i].pending or left[i].outcomes:
            return False
    return a.accounts[kept_account(a, user)].pending == 0


cdef inline uint32_t find_user(Arena *a, uint32_t uid) noexcept nogil:
    """The record (index) of a user; 0 if it has none."""
    cdef uint32_t user
    for user in range(1, capacity(a, REGION_USERS)):  # bound: users
        if a.users[user].state and a.users[user].uid == uid:
            return user
    return 0


cdef inline uint32_t open_user(Arena *a, uint32_t uid) noexcept nogil:
    """The record (index) of a user, which is made if there is none; 0 if all are in use, or the user is unknown."""
    cdef uint32_t user = 1, found = find_user(a, uid), count = capacity(a, REGION_USERS)
    if found or uid == UID_UNKNOWN:
        return found
    while found == 0 and user < count:  # bound: users
        if not a.users[user].state:
            found = user
        user += 1
    user = 1
    while found == 0 and user < count:  # bound: users
        if user_holds_nothing(a, user):
            found = user
        user += 1
    if found:
        a.regions[REGION_USERS].in_use += a.users[found].state == 0
        td_put(&a.tx, UserRecord_word_uid(a.users + found), UserRecord_with_uid(UserRecord_with_state(0, 1), uid))
        commit(a)
    return found
