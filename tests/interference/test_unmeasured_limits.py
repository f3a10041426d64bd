"""What limits a kernel is said with what was not measured: that may be fuller."""

from __future__ import annotations

from published_launches import MM, launch

from tachograph.annexes.share.kernel_limits import limits
from tachograph.annexes.share.kernels import kernels_of
from tachograph.annexes.share.kernels_sentences import limits_sentence

ISSUED = "sm__inst_issued.avg.per_cycle_active"


def test_a_limit_beside_what_was_not_measured_shows_so() -> None:
    (whole,) = kernels_of([MM])
    assert limits_sentence(limits(whole)) == (
        "issue: 75 % of it is used, 25 % is left to others. "
        "Small grid: 128 blocks for 132 SMs, 3 % of the SMs have none."
    )
    (less,) = kernels_of(
        [launch({name: value for name, value in MM.metrics.items() if name != ISSUED})]
    )
    message = limits_sentence(limits(less))
    assert message.startswith("FMA: 60 %")
    assert "Not measured, and perhaps fuller: issue." in message
