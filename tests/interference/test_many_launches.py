"""What is asked of launches grows with their number, whether they are one kernel or each is a
kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from published_launches import H100

from tachograph.annexes.share.kernels import kernels_of
from tachograph.annexes.share.nsight.launches import Launch

NAMES = ("gpu__time_duration.sum", "lts__t_sector_hit_rate.pct", "lts__t_sectors.sum", "dram__bytes.sum",
         "sm__inst_issued.avg.per_cycle_active", "sm__cycles_active.avg", "launch__grid_size")  # fmt: skip


class Asked(Mapping[str, float]):
    """Metrics that count how often they are asked, all together."""

    times = 0

    def __init__(self, result: dict[str, float]) -> None:
        self._told = result

    def __getitem__(self, metric: str) -> float:
        Asked.times += 1
        return self._told[metric]

    def __iter__(self) -> Iterator[str]:
        Asked.times += len(self._told)
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)


def asked_by(count: int, distinct: int) -> int:
    """How often metrics are asked when `count` launches of `distinct` kernels are put together."""
    launches = [
        Launch(
            f"k{number % distinct}",
            Asked({**dict.fromkeys(NAMES, 1.0 + number), "launch__grid_size": 132.0}),
            H100,
            "a.csv",
            number,
        )
        for number in range(count)
    ]
    Asked.times = 0
    found = kernels_of(launches)
    assert len(found) == distinct
    assert sum(kernel.launches for kernel in found) == count
    return Asked.times


@pytest.mark.parametrize("one_kernel", [True, False])
def test_ten_times_the_launches_are_requested_ten_times_as_often(one_kernel: bool) -> None:
    few, many = (asked_by(count, 1 if one_kernel else count) for count in (30, 300))
    assert 0 < many <= 10.5 * few
