"""python -m analysis.ranks."""

import sys

from . import main

sys.exit(main())
