"""The same as hot/python.py has, compiled (see there)."""

from timerd_client.hot.python import Watches as Watches
from timerd_client.hot.python import amounts_of as amounts_of
from timerd_client.hot.python import are_bodies as are_bodies
from timerd_client.hot.python import durations_of as durations_of
from timerd_client.hot.python import issue_events as issue_events
from timerd_client.hot.python import issue_registrations as issue_registrations
from timerd_client.hot.python import plain_keys as plain_keys
