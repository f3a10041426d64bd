"""Why one GPU of a view is judged as it is: rule, values, what is missing and how to have it; made when asked for."""

from __future__ import annotations

from dataclasses import dataclass

from tachograph.live.snapshot import Device
from tachograph.live.view import View
from tachograph.workload.explained import explained
from tachograph.workload.health import (
    INPUTS,
    Health,
    HealthReading,
    Limits,
    health_of,
    health_reason,
    limits_of,
)
from tachograph.workload.reading import Classified, Reading, classify, enabling, reading_of


@dataclass(frozen=True, slots=True)
class Reasons:
    """What one GPU is judged by.

    classified: of the means over the window, from which the class shown comes; raw: of the last reading alone. why: the
    rule of the former with its values; health_why: what is wrong, "" where nothing is. enable: {counter that is
    missing: how to have it}.
    """

    classified: Classified
    raw: Classified
    health: Health
    limits: Limits
    why: str
    health_why: str
    enable: dict[str, str]


def reasons(view: View, row: int) -> Reasons:
    """Return why the GPU in a row of a view has its class and its health."""
    settings = view.settings
    now = reading_of({name: float(column[row]) for name, column in view.snapshot.values.items()})
    means = reading_of({name: float(column[row]) for name, column in view.means.items()}) if view.means else now
    of_window = means if view.told[row] else Reading()
    device = view.snapshot.devices.get(view.snapshot.gpus[row]) or Device()
    limits = limits_of(device.model, device.slowdown_c)
    seen = health_reading(view, row)
    classified, health = classify(of_window, settings), health_of(seen, limits)
    why = explained(of_window, settings) if view.told[row] else "it tells nothing now"
    if view.told[row] and classified.name != view.label(row):
        why = f"now {classified.name} ({why}); {view.label(row)} stays until that has lasted"
    missing = dict.fromkeys((*classified.needs, *health.needs))
    return Reasons(
        classified,
        classify(now, settings),
        health,
        limits,
        why,
        health_reason(seen, limits, within_s=settings.event_memory_s),
        {name: view.about.blind.get(name) or enabling([name]) for name in missing},
    )


def health_reading(view: View, row: int) -> HealthReading:
    """Return what is known of the health of a GPU: of replays those that are still visible."""
    values = {name: view.snapshot.value(name, row) for name in INPUTS}
    if view.replays is not None:
        replays = float(view.replays[row])
        values["pcie_replays"] = None if replays != replays else replays
    return HealthReading(**values)
