"""python -m analysis.page."""

import sys

from . import main

sys.exit(main())
