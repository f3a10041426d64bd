"""`python -m tachograph`."""

import sys

from tachograph.cli import main

sys.exit(main())
