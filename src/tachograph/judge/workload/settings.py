"""How GPUs are classified: weights of real utilisation, which rules, how labels are smoothed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.catalog.config import WorkloadOptions
from tachograph.catalog.errors import ConfigError

Weights = tuple[float, float, float, float]
NAMES = ("sm", "tensor", "dram", "gr")
# Source: KempnerPulse
PRESETS: Mapping[str, Weights] = {
    "ai": (0.35, 0.35, 0.20, 0.10),
    "hpc": (0.45, 0.15, 0.25, 0.15),
    "mem": (0.35, 0.10, 0.40, 0.15),
}
REFERENCE = "reference"
CLASSIFIERS = ("default", REFERENCE)


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """How GPUs are classified. published: use the rules as published.

    weights: of SM, tensor, DRAM and engine, adding up to 1.

    smoothing_s: window of a live label; 0: none. event_memory_s: how long an event stays visible.
    """

    weights: Weights = PRESETS["ai"]
    published: bool = False
    smoothing_s: float = 30.0
    event_memory_s: float = 600.0


def settings_of(configured: WorkloadOptions) -> WorkloadSettings:
    """Return the settings that a configuration names.

    >>> settings_of(WorkloadOptions(weights={"sm": 3, "dram": 1})).weights
    (0.75, 0.0, 0.25, 0.0)

    Errors: ConfigError naming the key.
    """
    published = REFERENCE in (configured.preset, configured.classifier)
    preset = "ai" if configured.preset == REFERENCE else configured.preset  # the published default
    if preset not in PRESETS:
        raise ConfigError(
            f"workload.preset: unknown preset {configured.preset!r}",
            do=f"use {', '.join((*PRESETS, REFERENCE))}",
        )
    if configured.classifier not in CLASSIFIERS:
        raise ConfigError(
            f"workload.classifier: unknown classifier {configured.classifier!r}",
            do=f"use {' or '.join(CLASSIFIERS)}",
        )
    for key in ("smoothing_s", "event_memory_s"):
        if not 0 <= getattr(configured, key) < float("inf"):
            raise ConfigError(f"workload.{key}: must be a number of seconds", do="give 0 or more")
    weights = _normalised(configured.weights) if configured.weights else PRESETS[preset]
    return WorkloadSettings(
        weights,
        published,
        configured.smoothing_s,
        configured.event_memory_s,
    )


def _normalised(given: Mapping[str, float]) -> Weights:
    """Weights made to add up to 1; those that are not named are 0."""
    unknown = [name for name in given if name not in NAMES]
    if unknown:
        raise ConfigError(
            f"workload.weights: unknown weight {unknown[0]!r}", do=f"use some of {', '.join(NAMES)}"
        )
    total = sum(given.values())
    if not (0 < total < float("inf")) or min(given.values()) < 0:
        raise ConfigError(
            "workload.weights: none may be negative, one must be above 0",
            do="give positive numbers",
        )
    sm, tensor, dram, gr = (given.get(name, 0.0) / total for name in NAMES)
    return sm, tensor, dram, gr
