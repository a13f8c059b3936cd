"""The same as hot/python.py has, compiled (see there)."""

from timerd_client.hot.python import Handle as Handle
from timerd_client.hot.python import Promised as Promised
from timerd_client.hot.python import Rows as Rows
from timerd_client.hot.python import copy_records as copy_records
from timerd_client.hot.python import without_collector as without_collector
