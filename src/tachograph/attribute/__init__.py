"""Which job held which GPU when: runs of jobs, their allocations, and the intervals that follow.

jobs, allocations, inventory  ->  runs (one row per run of a job)  ->  intervals (who owns a GPU's samples)
"""

from tachograph.attribute.intervals import Attribution, attribute
from tachograph.attribute.runs import build_runs

__all__ = ["Attribution", "attribute", "build_runs"]
