"""The fixed numbers, declared once. Units are in the names; sizes are bytes."""

from __future__ import annotations

import re

KEY_SIZE_MAX = 255
ID_SIZE_MAX = 255
KEYS_MAX = 64
PAYLOAD_SIZE_MAX = 65_536
NAME_SIZE_MAX = 32
NAME_PATTERN = re.compile(r"[a-z0-9_-]{1,32}")
NAME_FORM = f"is not of the form {NAME_PATTERN.pattern}: give 1 to 32 small letters, digits, _ and -"

TICK_NS_DEFAULT = 1_000_000
TICK_NS_MIN = 100_000
TICK_NS_MAX = 1_000_000_000
TIMEOUT_NS_MAX = 10 * 366 * 86_400 * 1_000_000_000  # ten years of 366 days
NO_DEADLINE = 0xFFFF_FFFF_FFFF_FFFF
# A turn reads its clock when it begins. A registration that comes later in the turn states a call time ahead of that
# clock: by 1 s at most, else the turn's clock counts.
CALL_AHEAD_NS_MAX = 1_000_000_000

CLIENTS_MAX = 256  # the default: fits a daemon with 1,024 files, the usual limit (timerd/host/descriptors.py)
PURGATORIES_MAX = 64
GROUPS_MAX = 64
USERS_MAX = 16  # records of users: 15 users have accounts of their own, and all others share record 0
UID_UNKNOWN = 0xFFFF_FFFF  # no user has this uid
CAPACITY_DEFAULT = 131_072
CAPACITY_MIN = 16
CAPACITY_MAX = 16_777_216
RING_EVENTS_DEFAULT = 65_536
RING_EVENTS_MIN = 16
RING_EVENTS_MAX = 1 << 24
RING_VALUE_BYTES = 16 << 20
REPLAY_WALK_MAX = 4_096  # events walked for one registration; beyond that its mark is too old
ANSWERS_PER_CLIENT_MAX = 1_024
OUTCOMES_PER_CLIENT_MAX = 65_536
SETTLED_IDS_KEPT_NS = 3_600 * 1_000_000_000
GROUP_KEPT_NS = 3_600 * 1_000_000_000  # how long outcomes of a group without a member are kept
DEAD_LETTERS = 256  # dead letters that a group keeps, by default
CALL_ENDS_SHIFT = 8  # OpRecord.error of a settled call: its CallPhase, and from this bit on the processes it has ended
CALL_REASON_SIZE_MAX = 1_024  # bytes of the reason why a call was given up
SCHEDULE_KEPT_NS = 7 * 86_400 * 1_000_000_000  # how long a schedule's call without a handler is kept
GROUP_HELD_MAX = 256  # outcomes of its group that a member holds at a time
CALLS_HELD_MAX = 1_000  # calls of its group that a member holds at a time, if it asks for as many
HANDLED_NAMES_MAX = 256  # names of calls that a member may handle
HELD_QUERY_MAX = 4_096  # op ids in one "held" query
CHECKS_MAX = 1_024  # checks (check_and_complete) that wait for owners at a time
CHECKS_PER_CLIENT_MAX = 64
TICKETS_MAX = 1 << 20  # operations at which owners are to look for checks; beyond it a check stays incomplete
TOMBSTONE_KEPT_NS = 3_600 * 1_000_000_000  # how long a dead client's numbering is kept

FRAME_SIZE_MAX = 4 << 20  # any legal command fits in one frame; of the usual commands, many fit
PACKET_SIZE_MAX = 131_072  # a packet of NAME.unix; the kernel takes 212,960 bytes by default (net.core.wmem_default)
COMMANDS_PER_FRAME_MAX = 16_384
WINDOW_COMMANDS_MAX = 65_536  # commands a client may have in flight, unacknowledged
HELLO_FIRST_SIZE_MAX = 8_192  # the hello of a client without a session, which has no operation to list
WAITS_MAX = 262_144  # operations that a client can list in one HELLO, which is a frame

CONNECT_TIMEOUT_S = 2.0
BACKPRESSURE_TIMEOUT_S = 1.0
CLOSE_TIMEOUT_S = 5.0
CHECK_TIMEOUT_S = 1.0
SNAPSHOT_TIMEOUT_S = 60.0  # the daemon keeps a copy for up to 10 s, and then rests for 9 times the CPU time of copying
HEARTBEAT_NS = 1_000_000_000
DAEMON_LOST_NS = 3_000_000_000
GRACE_NS = 1_000_000_000
LEASE_NS = 15_000_000_000
TAKEOVER_MS = 300_000  # silence after which other members get the calls and outcomes of a client whose process runs
TAKEOVER_MS_MIN = 2_000
TAKEOVER_MS_MAX = 3_600_000
GAP_NS = 1_000_000_000
ANNOUNCE_FIRST_NS = 50_000_000
ANNOUNCE_LAST_NS = 1_000_000_000
IPC_PATH_MAX = 107
LEFT_SHIFT = 28  # first bit of the high half of the number of a LEFT_... of wire.Met
LEFT_UNIT = 1024
MET_SHIFT = 56  # first bit of wire.Met in an answer's value; every limit is less than 2 ** 56
