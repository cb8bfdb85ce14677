"""python -m analysis.scrub."""

import sys

from . import main

sys.exit(main())
