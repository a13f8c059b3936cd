"""Whether compiled code is wanted, by $TIMERD_CLIENT.

"pure" takes the modules in Python. "compiled" takes the compiled ones, or raises ImportError where they were not built.
Unset takes the compiled ones where they were built, else those in Python.
"""

from __future__ import annotations

import os
from typing import Final

_CHOICES: Final = ("", "pure", "compiled")

CHOICE: Final = os.environ.get("TIMERD_CLIENT", "")
if CHOICE not in _CHOICES:
    raise ImportError(f'TIMERD_CLIENT={CHOICE!r}: write "pure" or "compiled", or leave it unset')
PURE: Final = CHOICE == "pure"
