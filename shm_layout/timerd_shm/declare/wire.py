"""The frames between client and daemon, declared once. client/PROTOCOL.md describes how they are used.

Everything is little endian and unaligned; a receiver copies fields out. Up (DEALER to ROUTER), a frame is

    CommandHeader, then `count` commands, each: its fixed record, then its variable part

and down (XPUB or ROUTER to the client)

    ReportHeader, then `outcomes` OutcomeRecords, then `answers` WireAnswers, then `looks` LookRecords, then a heap with
    values and payloads

Rare frames carry one msgpack map instead (HELLO, QUERY; WELCOME, RESULT, ERROR). Over NAME.unix (SOCK_SEQPACKET) a
frame travels in a packet of its own, or in several where it is too large for one (PacketKind).

Commands are numbered one by one from `first_command`; acknowledgements are unnumbered and ride in every frame. An
operation is named by its owner's command number, so a client has no way to name another client's operation.
"""

from enum import IntEnum, IntFlag
from typing import Annotated, NamedTuple

from .fields import U8, U16, U32, U64, fields, raw, size_of

PROTOCOL_VERSION = 6


class UpKind(IntEnum):
    """Frames from a client. ACK and ASK are a header alone."""

    COMMANDS = 1
    ACK = 2  # acknowledgements, and a sign of life
    ASK = 3  # send again, by ROUTER, all outcomes and answers after these acknowledgements
    HELLO = 4  # msgpack: the client's description of itself, and the operations that it waits for
    QUERY = 5  # msgpack: {"query": name, "id": n, ...}
    BYE = 6  # this client ends; the orphans policy decides about its operations


class FrameFlag(IntFlag):
    """Flags of a frame from a client."""

    CONFIRM = 1  # COMMANDS, ACK: report at once which commands are applied, instead of with the next outcome
    LEAVING = 2  # the client's process is ending: the end of its connection is its goodbye


class DownKind(IntEnum):
    """Frames from the daemon."""

    REPORT = 1  # applied commands, outcomes, answers, looks
    EXPECTED = 2  # a ReportHeader: command `applied` + 1 is expected; send again from there
    HELLO_FIRST = 3  # a ReportHeader: this session is not known; say hello
    WELCOME = 4  # msgpack: the session, the slot, limits
    RESULT = 5  # msgpack: answer to a query
    ERROR = 6  # msgpack: {"code", "message"}: the frame was refused
    SESSION_GONE = 7  # a ReportHeader: the client is no longer known, nor what became of its unacknowledged commands


class DownFlag(IntFlag):
    """Flags of a REPORT."""

    ASKED = 1  # the REPORT answers ASK: the daemon has sent no newer outcomes or answers than these


class PacketKind(IntEnum):
    """First byte of a packet of NAME.unix. With ZeroMQ a frame is a message, and there are no packets."""

    FRAME = 1  # then: a frame
    SUBSCRIBE = 2  # up only. Then: the session. This connection brings the outcomes; when it ends, the client has ended
    PART = 3  # the first part of a frame that is too large for a packet. Then: u32 size of the frame, its first bytes
    MORE = 4  # then: the next bytes of that frame. Any other packet before the frame's end drops its parts


class CommandKind(IntEnum):
    """Commands. Each has a fixed record: RegisterCommand, KeyCommand, OperationCommand, LookCommand or CallCommand."""

    REGISTER = 1
    FIRE = 2  # KeyCommand; amount
    ADVANCE = 3  # KeyCommand; amount is the watermark
    FAIL = 4  # KeyCommand; amount is the code
    CANCEL_FOR_KEY = 5  # KeyCommand
    FORGET = 6  # KeyCommand
    CHECK = 7  # KeyCommand: owners that watch the key look; the query "check" asks how many operations they completed
    CANCEL = 8  # OperationCommand
    RESCHEDULE = 9  # OperationCommand; timeout
    RESCHEDULE_ID = 10  # OperationCommand with an id
    CANCEL_ID = 11  # OperationCommand with an id
    SET_ORPHANS = 12  # OperationCommand; orphans
    GROUP_ACK = 13  # OperationCommand; `operation` is the op id of the group's outcome that the member has finished
    LOOKED = 14  # LookCommand: the owner has looked, and the operation goes on
    COMPLETE = 15  # LookCommand: the owner completes the operation
    CALL_PHASE = 16  # CallCommand: a member is about to run something for a call that it holds, or gives the call up


class RegisterFlag(IntFlag):
    """Flags of a RegisterCommand."""

    HAS_ID = 1
    KEEP = 2  # if the id exists: keep its operation (neither KEEP nor REPLACE: error)
    REPLACE = 4
    WANTS_ANSWER = 8  # register_wait()
    MARK_BY_SEQUENCE = 16  # the mark is another client's or the daemon's: own events count by sequence as well
    MARK_OF_OTHER_ARENA = 32  # the mark is of another incarnation: too old
    NO_MARK = 64  # only events after the registration was applied count
    ORPHANS_GIVEN = 128  # the policy is `orphans`; otherwise it is the client's
    FOR_GROUP = 256  # the operation belongs to the sender's group from the start: a member gets its outcome
    REPLACE_CANCELLED = 512  # if the id exists: replace its operation if that was cancelled, else refuse
    CALL = 1024  # with FOR_GROUP: delivered only to a member that handles the name, its first key
    FOLLOWS = 4096  # with NO_MARK: it acknowledges the call of op id `mark_sequence`; refused if that call is done
    ALONE = 8192  # with CALL: only for a member that holds no other call, because this call has ended processes
    OF_LETTER = 32768  # with FOLLOWS: the op id is that of a dead letter, which is freed
    SCHEDULED = 16384  # with CALL: a point of a schedule, kept for --schedule-retention while no member handles it
    REPLACE_CHANGED = 2048  # replace a pending operation of the id, if its payload is of the same sort, and changed


class CommandFlag(IntFlag):
    """Flags of the other commands."""

    LIMITED = 1
    WANTS_ANSWER = 8
    HAS_ID = 16
    REQUEUE = 32  # CANCEL: the owner gives up a completed operation; the limited event goes to the next watcher
    FREES_ID = 64  # GROUP_ACK: the id counts as cancelled from now on, if its call settled at `registered_ns`
    OF_LETTER = 128  # GROUP_ACK: the op id is that of a dead letter, which is freed


class OutcomeFlag(IntFlag):
    """Flags of an OutcomeRecord."""

    REDELIVERED = 1
    VALUE_DROPPED = 2
    GRANTED = 4
    HAS_PAYLOAD = 8  # the receiver did not register it: payload, and names of the keys, are in the heap
    HAS_VALUE = 16
    CALL = 32  # a group's call: for the handler of its first key
    HAS_FAILURES = 64  # the codes of the failed keys are in the heap: a u32 for each bit of `failed`


class Met(IntEnum):
    """The limit that an ARENA_FULL or QUOTA_EXCEEDED met: the top byte of the answer's value. The other bytes have the
    limit's number, such as 4,096 operations.
    """

    NOTHING = 0
    OPERATIONS = 1
    OUTCOMES = 2
    BYTES = 3
    WATERMARKS = 4
    NODES = 5
    BLOCKS = 6
    IDS = 7
    VALUES = 8  # in the log of errors alone: an outcome is delivered without its value
    CHECKS = 9
    # In the log of errors alone: outcomes of a group were evicted. The number is the share of the user whose ended
    # clients had made them.
    EVICTED_OPERATIONS = 10
    EVICTED_NODES = 11
    EVICTED_BYTES = 12
    # The ended clients of the client's user, and the client, keep as much as they may: the low half of the number. The
    # high half is what they keep. Both are in units of LEFT_UNIT for bytes.
    LEFT_OPERATIONS = 13
    LEFT_NODES = 14
    LEFT_BYTES = 15
    LEFT_IDS = 16


class CommandHeader(NamedTuple):
    """Start of every frame up."""

    version: Annotated[int, U8, "PROTOCOL_VERSION"]
    kind: Annotated[int, U8, "UpKind"]
    flags: Annotated[int, U16, "FrameFlag"]
    count: Annotated[int, U32, "commands in the frame"]
    incarnation: Annotated[int, U64, "arena incarnation that the client knows; 0 in the first HELLO"]
    session: Annotated[bytes, raw(16), "secret got at WELCOME; zero in the first HELLO"]
    first_command: Annotated[int, U64, "number of the first command; if the frame has none, of the client's next one"]
    acknowledged_outcome: Annotated[int, U64, "outcomes up to this number have been received"]
    acknowledged_answer: Annotated[int, U64, "answers up to this command number have been received"]


class RegisterCommand(NamedTuple):
    """REGISTER. Then: the id's 16-byte hash if HAS_ID; the keys; the payload.

    A key is: u8 length, u8 KeyKind, for WATERMARK the u64 target, the bytes.
    """

    kind: Annotated[int, U8, "CommandKind.REGISTER"]
    purgatory: Annotated[int, U8, "index"]
    flags: Annotated[int, U16, "RegisterFlag"]
    length: Annotated[int, U32, "bytes of the whole command with its variable part"]
    condition: Annotated[int, U8, "Condition"]
    needed: Annotated[int, U8, "k of AT_LEAST"]
    keys: Annotated[int, U8, "number of keys, 1..64"]
    orphans: Annotated[int, U8, "Orphans, with ORPHANS_GIVEN"]
    payload_length: Annotated[int, U32, "bytes"]
    registered_ns: Annotated[int, U64, "CLOCK_MONOTONIC when register() was called; 0 = when the command is applied"]
    timeout_ns: Annotated[int, U64, "from registered_ns; NO_DEADLINE = none"]
    mark_sequence: Annotated[int, U64, "newest event when the mark was read; with FOLLOWS an op id"]
    mark_command: Annotated[
        int,
        U64,
        "last command that the client had issued then; with CALL and NO_MARK the due time, CLOCK_REALTIME, 0 = none",
    ]
    total: Annotated[int, U64, "amount to reach, under TOTAL; with REPLACE_CHANGED how many bytes to compare"]


class KeyCommand(NamedTuple):
    """FIRE, ADVANCE, FAIL, CANCEL_FOR_KEY, FORGET, CHECK. Then: the key, the value."""

    kind: Annotated[int, U8, "CommandKind"]
    purgatory: Annotated[int, U8, "index"]
    flags: Annotated[int, U8, "CommandFlag"]
    key_length: Annotated[int, U8, "bytes, 1..255"]
    length: Annotated[int, U32, "bytes of the whole command with its variable part"]
    amount: Annotated[int, U64, "amount, watermark or code"]
    value_length: Annotated[int, U32, "bytes"]
    limit: Annotated[int, U32, "operations to complete at most, with LIMITED"]


class OperationCommand(NamedTuple):
    """CANCEL, RESCHEDULE, SET_ORPHANS and similar commands. Then: the id's 16-byte hash if HAS_ID."""

    kind: Annotated[int, U8, "CommandKind"]
    purgatory: Annotated[int, U8, "index, for an id"]
    flags: Annotated[int, U8, "CommandFlag"]
    orphans: Annotated[int, U8, "Orphans"]
    length: Annotated[int, U32, "bytes of the whole command with its variable part"]
    operation: Annotated[int, U64, "command number of the registration; op id for GROUP_ACK"]
    registered_ns: Annotated[int, U64, "CLOCK_MONOTONIC when reschedule() was called; 0 = when the command is applied"]
    timeout_ns: Annotated[int, U64, "from registered_ns; NO_DEADLINE = none"]


class LookCommand(NamedTuple):
    """LOOKED and COMPLETE of the client's own operation."""

    kind: Annotated[int, U8, "CommandKind"]
    purgatory: Annotated[int, U8, "index"]
    flags: Annotated[int, U8, "CommandFlag"]
    reserved: Annotated[int, U8, "zero"]
    length: Annotated[int, U32, "bytes of the command"]
    operation: Annotated[int, U64, "command number of the registration"]
    sequence: Annotated[int, U64, "of the look that this command answers; 0 = of none"]


class CallCommand(NamedTuple):
    """CALL_PHASE. Then, with CallPhase.FAILED: the reason, in UTF-8."""

    kind: Annotated[int, U8, "CommandKind.CALL_PHASE"]
    purgatory: Annotated[int, U8, "index"]
    flags: Annotated[int, U8, "CommandFlag"]
    phase: Annotated[int, U8, "CallPhase, not DUE"]
    length: Annotated[int, U32, "bytes of the whole command with its variable part"]
    operation: Annotated[int, U64, "op id"]
    limit_ns: Annotated[int, U64, "how long the handler may run; 0 = for ever"]


class ReportHeader(NamedTuple):
    """Start of every frame down. The first 8 bytes are the client's topic."""

    topic: Annotated[int, U64, "the client's topic: slot and generation"]
    version: Annotated[int, U8, "PROTOCOL_VERSION"]
    kind: Annotated[int, U8, "DownKind"]
    flags: Annotated[int, U16, "DownFlag; zero except in a REPORT"]
    outcomes: Annotated[int, U32, "OutcomeRecords that follow"]
    answers: Annotated[int, U32, "WireAnswers that follow the outcomes"]
    looks: Annotated[int, U32, "LookRecords that follow the answers"]
    incarnation: Annotated[int, U64, "arena incarnation"]
    applied: Annotated[int, U64, "last command applied: commands up to it need not be sent again"]
    outcome_first: Annotated[
        int, U64, "this frame covers outcomes outcome_first..outcome_last; a number without a record is void"
    ]
    outcome_last: Annotated[int, U64, "less than outcome_first when it covers none"]
    outcome_newest: Annotated[int, U64, "newest outcome number of the client: if no frame brought it, one was lost"]
    answer_previous: Annotated[int, U64, "command number of the answer before the first of this frame; 0 = none"]
    answer_newest: Annotated[int, U64, "command number of the newest answer kept; 0 = none"]
    newest: Annotated[int, U64, "sequence of the newest event"]
    now_ns: Annotated[int, U64, "CLOCK_MONOTONIC of the turn"]


class OutcomeRecord(NamedTuple):
    """An operation has settled."""

    command: Annotated[int, U64, "command number of the registration; 0 = a group's operation, not the receiver's own"]
    number: Annotated[int, U64, "outcome number"]
    operation: Annotated[int, U64, "op id: generation << 32 | index"]
    settled_ns: Annotated[int, U64, "CLOCK_MONOTONIC"]
    deadline_ns: Annotated[int, U64, "CLOCK_MONOTONIC; NO_DEADLINE = none"]
    registered_ns: Annotated[int, U64, "CLOCK_MONOTONIC"]
    sequence: Annotated[int, U64, "sequence of the outcome's mark, which was taken when the operation settled"]
    satisfied: Annotated[
        int,
        U64,
        "satisfied keys, one bit each; under OBSERVE the amount of the event, under OWNER 0; of a call its due time, "
        "CLOCK_REALTIME, 0 = by its deadline alone",
    ]
    failed: Annotated[int, U64, "failed keys, one bit each; under OBSERVE the EventKind of the event, under OWNER 0"]
    heap_offset: Annotated[int, U32, "of its value from the start of the heap"]
    value_length: Annotated[int, U32, "bytes"]
    payload_length: Annotated[
        int, U32, "bytes, with HAS_PAYLOAD: the payload follows the value and the codes of failed keys"
    ]
    keys_length: Annotated[int, U32, "bytes of names (u8 length, bytes): purgatory, then keys; with HAS_PAYLOAD"]
    error: Annotated[int, U32, "code given to fail(), or an ErrorCode; of a call as in OpRecord"]
    state: Annotated[int, U8, "Outcome"]
    settled_key: Annotated[int, U8, "ordinal + 1; 0 = none"]
    flags: Annotated[int, U8, "OutcomeFlag"]
    deliveries: Annotated[int, U8, "delivery count, of a group's outcome"]


class WireAnswer(NamedTuple):
    """A refusal, or the answer to a command that wanted one."""

    command: Annotated[int, U64, "the command it answers"]
    value: Annotated[
        int, U64, "count, or the limit that was met (Met); for OPERATION_EXISTS how that operation has settled"
    ]
    code: Annotated[int, U32, "ErrorCode; 0 = done"]
    reserved: Annotated[int, U32, "zero"]


class LookRecord(NamedTuple):
    """The owner of an operation is to look: an event has come on one of its keys. Sent until the owner has looked."""

    command: Annotated[int, U64, "command number of the operation's registration"]
    sequence: Annotated[int, U64, "of the newest event; the owner's LOOKED or COMPLETE names it"]


WIRE_RECORDS: tuple[type, ...] = (
    CommandHeader,
    RegisterCommand,
    KeyCommand,
    OperationCommand,
    LookCommand,
    CallCommand,
    ReportHeader,
    OutcomeRecord,
    WireAnswer,
    LookRecord,
)

TOPIC_OFFSET = 0
assert fields(ReportHeader)[0].name == "topic"
assert size_of(CommandHeader) == 56
assert (size_of(RegisterCommand), size_of(KeyCommand), size_of(OperationCommand)) == (56, 24, 32)
assert (size_of(LookCommand), size_of(CallCommand), size_of(LookRecord)) == (24, 24, 16)
assert (size_of(ReportHeader), size_of(OutcomeRecord), size_of(WireAnswer)) == (96, 96, 24)
