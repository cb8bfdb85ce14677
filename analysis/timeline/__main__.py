"""python -m analysis.timeline."""

import sys

from . import main

sys.exit(main())
