"""`python benchmarks/day`: simulated days of jobs that share GPUs."""

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[1])]  # of a script it is its own folder, in which `day` is not

from day.command import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
