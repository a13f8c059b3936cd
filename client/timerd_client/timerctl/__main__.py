"""python -m timerd_client.timerctl: the same as the console script."""

import sys

from . import main

sys.exit(main())
