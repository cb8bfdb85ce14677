"""python -m profiling.precision."""

import sys

from . import main

sys.exit(main())
