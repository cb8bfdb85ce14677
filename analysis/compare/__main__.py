"""python -m analysis.compare."""

import sys

from . import main

sys.exit(main())
