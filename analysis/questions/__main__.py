"""python -m analysis.questions."""

import sys

from . import main

sys.exit(main())
