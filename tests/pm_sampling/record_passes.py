"""Records what CUPTI's host library answers to the choice of metrics, of every chip that it knows:

    python tests/pm_sampling/record_passes.py FOLDER

FOLDER has the packages of `research/gpu-day/pm-sampling.txt` (`pip install --target FOLDER
--no-deps -r ...`). No GPU and no driver is needed: CUPTI only looks for a driver, which here is one
of a few lines. `passes.json` gets {chip: {"fit": largest sets of metrics of one pass, "unfit":
smallest ones of more, or with a metric that it does not have}}, as far as the choice, and the raw samples
of a day on a GPU, need them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHARE = ".avg.pct_of_peak_sustained_elapsed"  # written as %
HERE = Path(__file__).parent
RECORD = HERE / "passes.json"
# All of the driver that the host library looks for. Its table of private functions ends before
# those that CUPTI would call.
DRIVER = """
static long zero(void) { return 0; }
static void *table[64] = {(void *)(64 * sizeof(void *)), [1 ... 63] = zero};
int cuDriverGetVersion(int *version) { *version = 13040; return 0; }
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 0; return 0; }
int cuDeviceGetCount(int *count) { *count = 0; return 0; }
int cuDeviceGetPCIBusId(char *text, int size, int device) { *text = 0; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 0; return 0; }
int cuGetExportTable(const void **found, const void *id) { *found = table; return 0; }
"""


def answers(packages: Path) -> dict[str, Any]:
    """Return what the library of these packages answers, in a process of its own."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "driver.c").write_text(DRIVER, encoding="utf-8")
        compiler = ["gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
        library = folder / "libcuda.so.1"
        subprocess.run([*compiler, "-o", library, folder / "driver.c"], check=True)
        # PYTHONPATH is of packages, so that the copy of tachograph is that of this process
        search = os.pathsep.join([str(packages), *sys.path])
        environment = {**os.environ, "LD_LIBRARY_PATH": made, "PYTHONPATH": search}
        printed = subprocess.run(
            [sys.executable, __file__, "--answer"],
            env=environment, check=True, stdout=subprocess.PIPE, timeout=300,
        ).stdout  # fmt: skip
    found: dict[str, Any] = json.loads(printed)
    return found


class _Listener:
    """`cupti.profiler_host`, which remembers what was requested and answered."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.ProfilerType = library.profiler_host.ProfilerType
        self.answers: dict[frozenset[str], bool] = {}

    def ProfilerHost(self, chip: str, kind: Any) -> Any:  # noqa: N802 the name of the library
        host = self.library.profiler_host.ProfilerHost(chip, kind)
        create = host.create_config_image

        def create_config_image(metrics: list[str]) -> Any:
            self.last = frozenset(metrics)
            self.answers[self.last] = False
            return create(metrics=metrics)

        host.create_config_image = create_config_image
        return host

    def get_num_of_passes(self, image: Any) -> int:
        count = int(self.library.profiler_host.get_num_of_passes(image))
        self.answers[self.last] = count == 1
        return count


def _answer() -> dict[str, Any]:
    from dataclasses import replace

    sys.path.append(str(HERE.parents[1] / "research" / "gpu-day"))
    from pm_sample import raw_metrics

    from tachograph.annexes.watch.pm_sampling.library import load_library
    from tachograph.annexes.watch.pm_sampling.metrics import choose_metrics

    library = load_library()
    chips = {}
    for chip in library.profiler_host.get_supported_chips():
        listener = _Listener(library)
        heard = replace(library, profiler_host=listener)
        chosen = choose_metrics(heard, chip)
        raw_metrics(heard, chip)
        fit = {one for one, fits in listener.answers.items() if fits}
        unfit = {one for one, fits in listener.answers.items() if not fits}
        chips[chip] = {
            "fit": _lines(one for one in fit if not any(one < other for other in fit)),
            "unfit": _lines(one for one in unfit if not any(one > other for other in unfit)),
            "passes": [list(each.values()) for each in chosen.passes],
        }
    return {"version": library.version, "chips": chips}


def _lines(sets: Iterable[frozenset[str]]) -> list[str]:
    return sorted(" ".join(sorted(one)).replace(SHARE, "%") for one in sets)


def by_answers(chips: dict[str, Any]) -> dict[str, Any]:
    """Return {names of chips: what is the same for them}."""
    groups: dict[str, list[str]] = {}
    for chip, answer in chips.items():
        recorded = {key: answer[key] for key in ("fit", "unfit")}
        groups.setdefault(json.dumps(recorded), []).append(chip)
    return {" ".join(names): json.loads(recorded) for recorded, names in groups.items()}


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        json.dump(_answer(), sys.stdout)
    else:
        found = answers(Path(sys.argv[1]))
        found["chips"] = by_answers(found["chips"])
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
