"""What the device of the micro-benchmarks calls: names that CUDA for Python has, arguments that
the kernels take.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from microbench import cuda_device
from microbench.cuda_device import compile_kernels
from microbench.workloads import KERNELS


def needed(name: str) -> Any:
    """A module of CUDA for Python; skipped without it, unless servers are required."""
    if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
        __import__(name)
    return pytest.importorskip(name)


def test_cuda_for_python_has_every_name_that_is_called() -> None:
    core, driver = needed("cuda.core"), needed("cuda.bindings.driver")
    text = Path(cuda_device.__file__).read_text(encoding="utf-8")
    for library, attribute in ((core, "_core"), (driver, "_driver")):
        names = set(re.findall(rf"self\.{attribute}\.(\w+)", text))
        assert names
        assert [name for name in names if not hasattr(library, name)] == []
    assert core.EventOptions(timing_enabled=True).timing_enabled
    assert core.StreamOptions().nonblocking  # streams do not wait for the default one


def test_every_kernel_takes_arguments_of_eight_bytes() -> None:
    """`launch` hands over pointers and 64-bit integers, and nothing else."""
    needed("cuda.bindings.nvrtc")
    ptx = compile_kernels("compute_90").image.decode()
    for name in KERNELS:
        head = ptx[ptx.index(f".entry {name}(") :]
        assert set(re.findall(r"\.param \.(\w+)", head[: head.index(")\n")])) == {"u64"}
