"""What kind of work a GPU does, and how it is: classes and health from its readings, live or stored.

A reading that lacks what decides is unknown, and says what it lacks. `CLASSES` are the names in the order of the rules,
unknown last.
"""

from tachograph.workload.classes import CLASSES, RULED, UNKNOWN, WorkloadClass
from tachograph.workload.health import Health, HealthReading, health_of, limits_of
from tachograph.workload.judge import JudgedWorkload, judge
from tachograph.workload.labels import MinuteLabeller
from tachograph.workload.reading import Classified, Reading, classify, real_utilisation
from tachograph.workload.settings import Settings, settings_of
from tachograph.workload.smoothing import Smoothed, smooth

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
