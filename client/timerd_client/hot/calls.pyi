"""The same as hot/python.py has, compiled (see there)."""

from timerd_client.hot.python import Caller as Caller
from timerd_client.hot.python import Line as Line
from timerd_client.hot.python import takes_fire as takes_fire
from timerd_client.hot.python import takes_register as takes_register
