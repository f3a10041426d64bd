"""What kind of work a GPU does, and how it is: classes and health from its readings, live or stored.

A reading that lacks what decides is unknown, and says what it lacks. `CLASSES` are the names in the order of the rules,
unknown last. What judges stored jobs is imported when it is asked for: it brings tables and the compiler along, which
live views need not wait for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tachograph.workload.classes import CLASSES, RULED, UNKNOWN, WorkloadClass
from tachograph.workload.health import Health, HealthReading, health_of, limits_of
from tachograph.workload.reading import Classified, Reading, classify, real_utilisation
from tachograph.workload.settings import Settings, settings_of
from tachograph.workload.smoothing import Smoothed, smooth

if TYPE_CHECKING:
    from tachograph.workload.jobs import JudgedWorkload, judge
    from tachograph.workload.labels import MinuteLabeller

__all__ = [
    "CLASSES",
    "RULED",
    "UNKNOWN",
    "Classified",
    "Health",
    "HealthReading",
    "JudgedWorkload",
    "MinuteLabeller",
    "Reading",
    "Settings",
    "Smoothed",
    "WorkloadClass",
    "classify",
    "health_of",
    "judge",
    "limits_of",
    "real_utilisation",
    "settings_of",
    "smooth",
]

_OF_STORED = {"JudgedWorkload": "jobs", "judge": "jobs", "MinuteLabeller": "labels"}


def __getattr__(name: str) -> Any:
    """Return what judges stored jobs."""
    if name not in _OF_STORED:
        raise AttributeError(name)
    return getattr(import_module(f"tachograph.workload.{_OF_STORED[name]}"), name)
