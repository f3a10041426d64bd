"""A node without a GPU whose GPUs are sampled: a stand-in of CUPTI, in this process or in a
child.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import tachograph
from tachograph.annexes.watch.pm_sampling.library import CudaGpu, PmLibrary, list_gpus

STAND_IN = Path(__file__).parent / "cupti_stand_in"
SOURCES = Path(tachograph.__file__).parent.parent
VARIABLE = "TACHOGRAPH_CUPTI_SCENARIO"


def gpu(number: int = 0, **changes: Any) -> dict[str, Any]:
    known = {
        "uuid": f"{number:032x}",
        "pci": f"0000:{number + 16:02x}:00.0",
        "model": "NVIDIA H200",
        "chip": "GH100",
    }
    return known | changes


@dataclass
class PmNode:
    """What the stand-in reads. `write` again to change it while it is read."""

    folder: Path
    gpus: list[dict[str, Any]] = field(default_factory=lambda: [gpu()])
    chips: dict[str, Any] = field(default_factory=dict)
    init: str = "CUDA_SUCCESS"
    version: str = "13.4.0"

    @property
    def path(self) -> Path:
        return self.folder / "scenario.json"

    def write(self) -> None:
        content = {"gpus": self.gpus, "chips": self.chips, "init": self.init}
        whole = self.folder / "scenario.new"
        whole.write_text(json.dumps(content), encoding="utf-8")
        whole.replace(self.path)

    def environment(self) -> dict[str, str]:
        """For a child: the stand-in in place of the library."""
        self.write()
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "TACHOGRAPH"))
        }
        modules = os.pathsep.join(map(str, (STAND_IN, self._installed(), SOURCES)))
        return kept | {"PYTHONPATH": modules, VARIABLE: str(self.path)}

    def _installed(self) -> Path:
        """A folder with what the package brings besides: its version, and CUDA's driver."""
        folder = self.folder / "installed"
        bindings, facts = (
            folder / "cuda" / "bindings",
            folder / f"cupti_python-{self.version}.dist-info",
        )
        for one in (bindings, facts):
            one.mkdir(parents=True, exist_ok=True)
        (facts / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: cupti-python\nVersion: {self.version}\n"
        )
        (bindings / "__init__.py").touch()
        shutil.copy(STAND_IN / "cuda_driver.py", bindings / "driver.py")
        return folder

    @contextmanager
    def library(self, now_ns: Callable[[], int] | None = None) -> Iterator[PmLibrary]:
        """Yield the stand-in in this process, under a name of its own. now_ns: the clock of its
        GPUs.
        """
        self.write()
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self.path)
        modules = _modules()
        clock = modules["scenario"].now_ns
        if now_ns is not None:
            modules["scenario"].now_ns = now_ns
        try:
            yield PmLibrary(
                modules["pm_sampling"],
                modules["profiler_host"],
                modules["cupti"],
                _driver(),
                "13.4.0",
            )
        finally:
            modules["scenario"].now_ns = clock
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before

    def listed(self, library: PmLibrary, number: int = 0) -> CudaGpu:
        return list_gpus(library)[number]


_NAME = "stand_in_of_cupti"


def _modules() -> dict[str, Any]:
    if _NAME not in sys.modules:
        _load(_NAME, STAND_IN / "cupti" / "__init__.py")
    return {
        name: import_module(f"{_NAME}.{name}")
        for name in ("scenario", "cupti", "profiler_host", "pm_sampling")
    }


def _driver() -> Any:
    return _load("stand_in_of_cuda_driver", STAND_IN / "cuda_driver.py")


def _load(name: str, file: Path) -> Any:
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class GpuClock:
    """Time that passes when it is told to; the clock of the GPU and ours, which count from other
    moments.
    """

    def __init__(self, start_s: float = 1_795_000_000.0) -> None:
        self.start_s, self.passed_ns = start_s, 0

    def now_ns(self) -> int:
        return 5_000_000_000 + self.passed_ns

    def now_s(self) -> float:
        return self.start_s + self.passed_ns / 1e9

    def pass_s(self, seconds: float) -> None:
        self.passed_ns += round(seconds * 1e9)
