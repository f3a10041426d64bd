"""How wrong the estimator may be: the margin, what is told with it, and what advice makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from day.jobs import SeenJob
from day.schedule import POLICIES, PolicyKnowledge
from tachograph.catalog.config import InterferenceOptions
from tachograph.sharing.accuracy import estimator_accuracy, margin
from tachograph.sharing.demand import H100_NVL, Demand, Sharing
from tachograph.sharing.estimate import estimate, matrix

# (measured, told without its table, whether both are a gain), of all that a table of the paper could have taught
LEFT_OUT = (
    (1.06, 1.0, False), (1.14, 1.0, False), (1.23, 2 * 0.5506, False), (1.36, 2 * 0.6918, False), (1.9, 1.8, False),
    (1.7, 1.5625, False), (1.85, 1.725, False), (15.8, 14.8, False), (1.018, 1 / 0.9659, True),
)  # fmt: skip
KERNELS = st.builds(
    Demand,
    name=st.just("kernel"),
    cycles=st.fixed_dictionaries({"issue": st.floats(0, 1), "fma": st.floats(0, 1)}),
    dram=st.floats(0, 1),
    seconds=st.just(1.0),
)


def test_the_margin_is_the_worst_of_what_was_reported_too_fast_without_its_table() -> None:
    longer = [result / measured if gain else measured / result for measured, result, gain in LEFT_OUT]
    assert max(longer) == pytest.approx(1.14)
    found = estimator_accuracy()
    assert margin(found.twenty) == pytest.approx(max(longer), abs=1e-9)
    assert InterferenceOptions().margin == pytest.approx(margin(found.twenty), abs=0.005)
    assert max(one.longer_left_out for one in found.held_out) < InterferenceOptions().margin


@given(KERNELS, KERNELS, st.floats(1, 2), st.booleans())
@examples(max_examples=25, deadline=None)
def test_upper_is_the_slowdown_and_the_margin(one: Demand, other: Demand, factor: float, lasting: bool) -> None:
    chosen, sharing = InterferenceOptions(margin=factor), Sharing(lasting=lasting)
    result = estimate([one, other], gpu=H100_NVL, settings=chosen, sharing=sharing).members[0]
    whole = matrix([one], [other], gpu=H100_NVL, settings=chosen, sharing=sharing)
    assert result.upper == (result.slowdown or math.nan) * factor == whole.upper[0, 0]


def test_who_is_alone_has_no_margin_and_what_is_not_known_no_upper() -> None:
    unmeasured, sees = Demand(name="blind"), Demand(name="sees", cycles={"issue": 0.4})
    assert estimate([sees], gpu=H100_NVL).members[0].upper == 1.0
    assert estimate([sees, unmeasured], gpu=H100_NVL).members[0].upper is None
    assert math.isnan(matrix([sees], [unmeasured], gpu=H100_NVL).upper[0, 0])


def test_advice_decides_by_what_phases_may_come_to_with_the_margin() -> None:
    """Recomputed phase by phase: both are slowed while both have a kernel on the GPU, each pair with the margin."""
    shares, slow = ((0.5, 0.2), (0.4,)), (((1.0, 1.3),), ((1.1, 1.0),))
    demand = Demand(name="any")
    seen = [SeenJob("any", tuple((share, demand) for share in one), 1e9, "compute", 0.1) for one in shares]
    met = [(a, b, slow[0][0][i], slow[1][0][i]) for i, a in enumerate(shares[0]) for b in shares[1]]
    expected = [1 + sum(a * b * (pair[of] - 1) for a, b, *pair in met) for of in (0, 1)]
    upper = [1 + sum(a * b * (1.2 * pair[of] - 1) for a, b, *pair in met) for of in (0, 1)]
    table = np.array([[1.0, expected[0]], [expected[1], 1.0]])
    (advice,) = (policy for policy in POLICIES if policy.code == "advice")
    for allowed, may in ((max(upper) + 1e-9, True), (max(upper) - 1e-9, False), (max(expected) + 1e-9, False)):
        chosen = InterferenceOptions(max_slowdown=allowed, margin=1.2)
        known = PolicyKnowledge(seen, table, table < 0, table, chosen)
        assert known.upper[[0, 1], [1, 0]].tolist() == pytest.approx(upper)
        assert bool(advice.permits(known).may[0, 1]) is may
        safe = PolicyKnowledge(seen, table, table > 0, table, chosen)
        assert bool(advice.permits(safe).may[0, 1])
