"""The same as hot/python.py has, compiled (see there)."""

from timerd_client.hot.python import Ledger as Ledger
from timerd_client.hot.python import Pending as Pending
