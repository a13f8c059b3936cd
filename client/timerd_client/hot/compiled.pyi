"""The same as hot/python.py has, compiled (see there)."""

from .python import Caller as Caller
from .python import Handle as Handle
from .python import Ledger as Ledger
from .python import Line as Line
from .python import Promised as Promised
from .python import Rows as Rows
from .python import Waiting as Waiting
from .python import amounts_of as amounts_of
from .python import are_bodies as are_bodies
from .python import are_keys as are_keys
from .python import copy_records as copy_records
from .python import durations_of as durations_of
from .python import issue_events as issue_events
from .python import issue_registrations as issue_registrations
from .python import plain_keys as plain_keys
from .python import settle_all as settle_all
from .python import takes_fire as takes_fire
from .python import takes_register as takes_register
