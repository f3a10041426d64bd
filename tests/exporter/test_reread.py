"""A value that is read again is no new sample; a new reading of the GPU is one, even with the
same values.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tachograph.sources.series import SeriesRereads

NAN = float("nan")
rows = st.tuples(st.floats(0.5, 40), st.sampled_from([1.0, 2.0, NAN]), st.sampled_from([5.0, NAN]))
# of a GPU; its clock may be set back before
windows = st.tuples(
    st.sampled_from("ab"), st.integers(-60, 40), st.lists(rows, min_size=1, max_size=6)
)


@given(st.lists(windows, max_size=10))
def test_it_is_what_a_plain_reading_keeps(
    read: list[tuple[str, int, list[tuple[float, float, float]]]],
) -> None:
    """Windows of one scrape and of many, of two GPUs, with counters that come and go."""
    rereads = SeriesRereads(30)
    clock = {"a": 1_000_000_000, "b": 1_000_000_000}
    kept: dict[str, tuple[int, str]] = {}
    for gpu, jump_s, of_window in read:
        clock[gpu] += jump_s * 1_000_000
        times, wanted = [], []
        for step_s, util, power in of_window:
            clock[gpu] += round(step_s * 1e6)
            last, values = kept.get(gpu, (clock[gpu], ""))
            same = last < clock[gpu] < last + 27_000_000 and values == repr((util, power))
            if not same:
                kept[gpu] = (clock[gpu], repr((util, power)))
            times.append(clock[gpu])
            wanted.append(not same)
        columns = {
            "gpu_util": np.array([util for _, util, _ in of_window]),
            "power_w": np.array([power for _, _, power in of_window]),
        }
        if np.isnan(columns["power_w"]).all():
            del columns["power_w"]
        assert rereads.fresh(gpu, np.array(times), columns).tolist() == wanted
