"""The build of the core for tests, with crash points and seeded defects. It is None if it was not built."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

core_faults: Any = importlib.import_module("timerd.core_faults") if find_spec("timerd.core_faults") else None
