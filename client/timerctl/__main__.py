"""python -m timerctl: the same as the console script."""

import sys

from . import main

sys.exit(main())
