"""All kinds of jobs beside all: how much slower each gets by sharing, whatever is proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tachograph.arrays import Bytes, Flags, Floats
from tachograph.report.colocate.judge import Judge, decisive, met
from tachograph.report.colocate.kinds import Kind


@dataclass(frozen=True, slots=True)
class KindMatrix:
    """Kinds on as many GPUs of one model, each (row) beside each (column) under MPS, itself among them.

    slowdown: of the row over all its time, as expected by what was measured; careful: what decides, with issue slots
    that nobody measured, and the margin of the estimator where one was profiled; NaN not known. binding: place in
    `resources` of what slows the row, read carefully, 255 nothing. full: whether memory is known not to hold both.
    """

    kinds: tuple[Kind, ...]
    slowdown: Floats
    careful: Floats
    binding: Bytes
    resources: tuple[str, ...]
    full: Flags


def matrix_of(kinds: Sequence[Kind], judge: Judge) -> KindMatrix:
    """Return all of `kinds`, which are on as many GPUs of one model, beside all."""
    least, most = judge.matrix(kinds), judge.matrix(kinds, judge.settings.assumed_issue)
    return KindMatrix(
        kinds=tuple(kinds),
        slowdown=met(least.slowdown, kinds),
        careful=met(decisive(most, kinds), kinds),
        binding=most.binding,
        resources=most.resources,
        full=np.array([[judge.full(one, other) for other in kinds] for one in kinds], dtype=bool),
    )
