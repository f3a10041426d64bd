"""The ledger: where the GPU-hours of a job went, no hour counted twice, and what of it could be had back.

`ledger` fills the columns WASTE of job_summaries when a job is judged; `prices` and `recover` say what they cost and
what of them is recoverable, under assumptions that are named.
"""

from tachograph.waste.ledger import judge, productive
from tachograph.waste.prices import with_money
from tachograph.waste.recover import ASSUMPTIONS, Assumption, recoverable

__all__ = ["ASSUMPTIONS", "Assumption", "judge", "productive", "recoverable", "with_money"]
