from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .cupti import ProfilerType, Result, cuptiError
from .scenario import scenario

__all__ = ["ProfilerHost", "ProfilerType", "get_num_of_passes", "get_single_pass_sets"]


def _chip(name: str) -> dict[str, Any]:
    found: dict[str, Any] = scenario().get("chips", {}).get(name, {})
    return found


def get_single_pass_sets(chip_name: str) -> list[str]:
    if not chip_name:
        raise ValueError("chip_name must be a non-empty string")
    return list(_chip(chip_name).get("sets", {}))


def get_num_of_passes(config_image: bytes) -> int:
    asked = json.loads(config_image)
    return int(-(-asked["cost"] // asked["per_pass"]))


class ProfilerHost:
    def __init__(
        self,
        chip_name: str,
        profiler_type: ProfilerType,
        single_pass_metric_set_name: str | None = None,
    ) -> None:
        self._chip_name, self._set = chip_name, single_pass_metric_set_name
        self._type = ProfilerType(profiler_type)
        self._metrics: list[str] = []
        self._initialized = False

    def initialize(self) -> None:
        if self._set is not None and self._set not in _chip(self._chip_name).get("sets", {}):
            raise ValueError(
                f"Invalid single_pass_metric_set_name {self._set!r} for chip {self._chip_name!r}"
            )
        if self._set is not None and self._set in _chip(self._chip_name).get("broken_sets", ()):
            # As sets of GB202 with libnvperf_host of CUDA 13.0.
            raise cuptiError(Result.ERROR_UNKNOWN)
        self._initialized = True

    def deinitialize(self) -> None:
        self._initialized = False

    def create_config_image(self, metrics: Sequence[str]) -> bytes:
        if not self._initialized:
            raise RuntimeError("Call initialize() before using this object.")
        chip = _chip(self._chip_name)
        for metric in metrics:
            allowed = chip.get("sets", {}).get(self._set) if self._set else None
            if metric in chip.get("unknown", ()) or (allowed is not None and metric not in allowed):
                # And not ERROR_INVALID_METRIC_NAME, as documented.
                raise cuptiError(Result.ERROR_INVALID_PARAMETER)
        self._metrics += metrics  # as the library: what is added stays
        per_pass = 100 if self._set else chip.get("per_pass", 100)
        costs = chip.get("costs", {})
        cost = sum(costs.get(metric, 1) for metric in dict.fromkeys(self._metrics))
        return json.dumps({"cost": cost, "per_pass": per_pass}).encode()
