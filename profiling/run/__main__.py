"""python -m profiling.run."""

import sys

from . import main

sys.exit(main())
