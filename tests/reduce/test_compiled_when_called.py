"""Functions are compiled when they are called, once, and may call each other; naming them
imports no compiler.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

from tachograph.catalog.arrays import Floats
from tachograph.catalog.compiled import Compiled, compiled, reordered

KERNELS = (
    *("tachograph.judge.classes.kernel", "tachograph.pipeline.kernel", "tachograph.pipeline.hosts"),
    *("tachograph.sources.prometheus_query", "tachograph.annexes.share.estimate"),
)


@compiled
def half(value: float) -> float:
    """Half of a value."""
    return value / 2


@reordered
def halves(values: Floats) -> float:
    """The sum of halves."""
    total = 0.0
    for value in values:
        total += half(value)
    return total


def test_a_compiled_function_calls_another() -> None:
    assert halves(np.arange(5.0)) == 5.0
    assert isinstance(halves, Compiled)
    assert halves.dispatcher.signatures
    assert halves.__doc__ == "The sum of halves."


def test_threads_that_call_it_at_once_share_what_is_compiled() -> None:
    once = Compiled(lambda value: value + 1, fastmath=False)
    together = Barrier(4)

    def ask(_: int) -> int:
        together.wait()
        return id(once.dispatcher)

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(ask, range(4)))) == 1
    assert once(1) == 2


def test_modules_of_compiled_functions_import_no_compiler() -> None:
    script = f"import sys, {', '.join(KERNELS)}\nassert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
