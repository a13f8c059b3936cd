"""The same as hot/python.py has, compiled (see there)."""

from timerd_client.hot.python import is_held as is_held
from timerd_client.hot.python import settle_all as settle_all
