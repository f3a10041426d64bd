from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cupti import ProfilerType, Result, cuptiError
from .scenario import scenario

__all__ = ["ProfilerHost", "ProfilerType", "get_num_of_passes"]

SHARE = ".avg.pct_of_peak_sustained_elapsed"
# What the library of the package answers for each chip; see `record_passes.py`.
RECORDED = json.loads(
    (Path(__file__).resolve().parents[2] / "passes.json").read_text(encoding="utf-8")
)


def get_num_of_passes(config_image: bytes) -> int:
    requested = json.loads(config_image)
    return int(-(-requested["cost"] // requested["per_pass"]))


def recorded_cost(chip_name: str, metrics: set[str]) -> int:
    """1 of what the library counts in one pass on this chip, else 2; as far as it was recorded."""
    (chip,) = (one for names, one in RECORDED["chips"].items() if chip_name in names.split())
    short = {metric.replace(SHARE, "%") for metric in metrics}
    if any(short <= set(fit.split()) for fit in chip["fit"]):
        return 1
    if any(short >= set(unfit.split()) for unfit in chip["unfit"]):
        return 2
    raise AssertionError(f"not recorded for {chip_name}: {sorted(metrics)}")


class ProfilerHost:
    def __init__(
        self,
        chip_name: str,
        profiler_type: ProfilerType,
        single_pass_metric_set_name: str | None = None,
    ) -> None:
        self._chip_name = chip_name
        self._type = ProfilerType(profiler_type)
        self._metrics: list[str] = []
        self._initialized = False

    def initialize(self) -> None:
        self._initialized = True

    def deinitialize(self) -> None:
        self._initialized = False

    def create_config_image(self, metrics: Sequence[str]) -> bytes:
        if not self._initialized:
            raise RuntimeError("Call initialize() before using this object.")
        made: dict[str, Any] | None = scenario().get("chips", {}).get(self._chip_name)
        self._metrics += metrics  # as the library: what is added stays
        if made is None:
            cost = recorded_cost(self._chip_name, set(self._metrics))
            return json.dumps({"cost": cost, "per_pass": 1}).encode()
        for metric in metrics:
            if metric in made.get("unknown", ()):
                # And not ERROR_INVALID_METRIC_NAME, as documented.
                raise cuptiError(Result.ERROR_INVALID_PARAMETER)
        costs = made.get("costs", {})
        cost = sum(costs.get(metric, 1) for metric in dict.fromkeys(self._metrics))
        return json.dumps({"cost": cost, "per_pass": made.get("per_pass", 100)}).encode()
