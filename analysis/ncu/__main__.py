"""python -m analysis.ncu."""

import sys

from . import main

sys.exit(main())
