"""Whether compiled code is wanted, by $TIMERD_CLIENT.

"pure" takes the form in Python. "compiled" raises ImportError where it was not built. Unset takes what was built.
"""

from __future__ import annotations

import os
from typing import Final

_CHOICES: Final = ("", "pure", "compiled")

CHOICE: Final = os.environ.get("TIMERD_CLIENT", "")
if CHOICE not in _CHOICES:
    raise ImportError(f'TIMERD_CLIENT={CHOICE!r}: "pure", "compiled", or unset for what there is')
PURE: Final = CHOICE == "pure"
