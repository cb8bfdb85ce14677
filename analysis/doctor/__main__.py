"""python -m analysis.doctor."""

import sys

from . import main

sys.exit(main())
