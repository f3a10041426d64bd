"""Step A: labelled workloads, their live class, bounds of counters, and energy beside the
driver's counter.
"""

from __future__ import annotations

import json
from typing import Any

from day_tools import DayTools, StepError, has_torch
from proof_labels import LABELS
from step_document import Cell, ResultTable, StepDocument

ENERGY_WITHIN = 0.01  # of the driver's counter
_SECONDS, _REHEARSED_S = 16.0, 3.0
_RESERVE_S = 45.0  # a workload that has begun ends within it


def measure(tools: DayTools, document: StepDocument) -> None:
    """Run what is missing of the workloads; raise StepError where time is up before all were
    run.
    """
    lacking = has_torch(tools)
    names = tools.chosen([label.name for label in LABELS])
    if lacking:
        names = [name for name in names if name == "idle"]
    folder = tools.out / "proof"
    seconds = _REHEARSED_S if tools.rehearse else _SECONDS
    words = [
        "--out",
        str(folder),
        "--gpu",
        str(tools.gpu),
        "--only",
        ",".join(names),
        "--seconds",
        f"{seconds:g}",
    ]
    words += ["--repeats", "0", "--minutes", f"{max(0.0, tools.left_s - _RESERVE_S) / 60:.3f}"]
    if tools.rehearse:
        words.append("--rehearse")
    problem = None
    try:
        tools.run(tools.python("proof.py", *words), tools.left_s)
    except StepError as ended:  # also where a workload came out unlike its label: that is a result
        problem = str(ended)
    file = folder / "results.json"
    if not file.exists():
        raise StepError(problem or "nothing was written")
    found = json.loads(file.read_text(encoding="utf-8"))
    document.result = found
    done = found["workloads"]
    document.tables = [_classes(done), _checks(done), _energy(done)]
    document.not_measured = [
        f"{name}: {one['error']}" for name, one in done.items() if one.get("error")
    ]
    if lacking:
        left_out = [label.name for label in LABELS if label.name != "idle"]
        document.not_measured.append(f"{', '.join(left_out)}: {lacking}")
    missing = [name for name in names if "shown" not in done.get(name, {}).get("done", ())]
    if missing and not all(done.get(name, {}).get("error") for name in missing):
        raise StepError(f"time is up: {', '.join(missing)} come next")


def _shown(done: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in done.items() if "shown" in one.get("done", ())}


def _classes(done: dict[str, Any]) -> ResultTable:
    table = ResultTable(
        "Live classes", ["workload", "accepted", "seen", "looks", "as expected", "samples a second"]
    )
    for name, one in _shown(done).items():
        seen = ", ".join(f"{label} {share:.0%}" for label, share in one["shares"].items())
        table.rows.append(
            [name, ", ".join(one["expected"]), seen, one["looks"], one["class_ok"], one["samples_per_s"]]
        )  # fmt: skip
    return table


def _checks(done: dict[str, Any]) -> ResultTable:
    table = ResultTable("Bounds of counters", ["workload", "expected", "found", "holds"])
    for name, one in _shown(done).items():
        table.rows += [
            [name, check["expected"], check["found"], check["ok"]] for check in one["checks"]
        ]
    return table


def energy_within(difference: float, resolution: float) -> bool | None:
    """Return whether energies agree as well as is wanted; None where a greater difference may come
    of the resolution.

    >>> energy_within(0.009, 0.012), energy_within(0.02, 0.012), energy_within(-0.03, 0.012)
    (True, None, False)
    """
    if abs(difference) <= ENERGY_WITHIN:
        return True
    return None if abs(difference) <= ENERGY_WITHIN + resolution else False


def _energy(done: dict[str, Any]) -> ResultTable:
    title = (
        f"Energy from power readings beside the driver's counter (goal: within {ENERGY_WITHIN:.0%})"
    )
    columns = [
        "workload",
        "seconds",
        "from power, J",
        "counter, J",
        "difference, %",
        "resolution, %",
        "within",
    ]
    table = ResultTable(title, columns)
    for name, one in _shown(done).items():
        drawn = one.get("energy")
        row: list[Cell] = [name, *[None] * (len(columns) - 1)]
        if drawn:
            off, resolution = drawn["difference"], drawn["resolution"]
            row = [name, drawn["seconds"], drawn["from_power_j"], drawn["counter_j"], 100 * off, 100 * resolution,
                   energy_within(off, resolution)]  # fmt: skip
        table.rows.append(row)
    return table
