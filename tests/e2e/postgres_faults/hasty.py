"""Makes the process that imports it give up a silent PostgreSQL after two seconds; `-m` of this is a scheduler."""

from __future__ import annotations

import sys

from flowforge.db import session
from flowforge.scheduler import publishing
from flowforge.scheduler.__main__ import main

session._SILENCE, session._BEYOND_LIMIT, publishing._LIMIT = 2.0, 1.0, 1.0

if __name__ == "__main__":
    sys.exit(main())
