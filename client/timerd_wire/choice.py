"""Whether compiled code is wanted, by $TIMERD_CLIENT.

"pure" takes what is written in Python; "compiled" raises ImportError where it was not built; unset takes what there is.
"""

from __future__ import annotations

import os
from typing import Final

_CHOICES: Final = ("", "pure", "compiled")

CHOICE: Final = os.environ.get("TIMERD_CLIENT", "")
if CHOICE not in _CHOICES:
    raise ImportError(f'TIMERD_CLIENT={CHOICE!r}: "pure", "compiled", or unset for what there is')
PURE: Final = CHOICE == "pure"
