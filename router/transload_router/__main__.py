"""`python -m transload_router` is `transload`."""

import sys

from transload_router.cli import main

sys.exit(main())
