"""The same as slow.py has, compiled (see there)."""

from .slow import Caller as Caller
from .slow import Handle as Handle
from .slow import Ledger as Ledger
from .slow import Line as Line
from .slow import Promised as Promised
from .slow import Rows as Rows
from .slow import Waiting as Waiting
from .slow import amounts_of as amounts_of
from .slow import are_bodies as are_bodies
from .slow import are_keys as are_keys
from .slow import copy_records as copy_records
from .slow import durations_of as durations_of
from .slow import issue_events as issue_events
from .slow import issue_registrations as issue_registrations
from .slow import plain_keys as plain_keys
from .slow import settle_all as settle_all
from .slow import takes_fire as takes_fire
from .slow import takes_register as takes_register
