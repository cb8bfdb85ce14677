"""python -m profiling.doctor."""

import sys

from . import main

sys.exit(main())
