"""Steps E and F: what was recorded as sample data with its ground truth, and one report of all
steps.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

from day_tools import DayTools, StepError
from step_document import Cell, ResultTable, StepDocument, load, markdown, write_whole

MOST_BYTES = 600_000  # of all sample data, compressed
_KEPT = ("calibration.toml", "calibration-mps.toml", "real-pairs.json")


def pack_samples(tools: DayTools, document: StepDocument) -> None:
    """Pack recordings, calibration, pairs and profiles as sample data; `truth.json` is what must
    follow from them.
    """
    folder = tools.out / "samples"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    sources = [tools.out / name for name in _KEPT]
    sources += sorted((tools.out / "proof" / "samples").glob("*.parquet"))
    sources += sorted((tools.out / "profiles").glob("*.csv"))
    for file in sources:
        if file.exists():
            shutil.copy(file, folder / file.name)
    write_whole(folder / "truth.json", json.dumps(_truth(tools), indent=1) + "\n")
    target = tools.out / "sample-data.tar.xz"
    new = target.with_suffix(".new")
    with tarfile.open(new, "w:xz") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, f"gpu-day-samples/{file.name}", filter=_anonymous)
    new.replace(target)
    table = ResultTable("Sample data", ["file", "bytes"])
    table.rows = [[file.name, file.stat().st_size] for file in sorted(folder.iterdir())]
    packed = target.stat().st_size
    table.rows.append(["all, compressed", packed])
    document.tables = [table]
    document.result = {"bytes": packed}
    document.not_measured = []
    if len(table.rows) == 2:
        raise StepError("nothing was recorded")
    if packed > MOST_BYTES:
        document.not_measured.append(
            f"sample data are larger than {MOST_BYTES} bytes: choose some files of samples/"
        )


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _truth(tools: DayTools) -> dict[str, Any]:
    """What was done and measured otherwise: labels, rates and energy, slowdowns, shares by
    Nsight Compute.
    """
    found: dict[str, Any] = {}
    for step, keys in (
        ("proof", ("workloads", "gpu")),
        ("pairs", ("real_pairs",)),
        ("pm", ("workloads",)),
    ):
        document = load(tools.out, step)
        if document is not None:
            found[step] = {key: document.result[key] for key in keys if key in document.result}
            found |= {
                "device": document.device,
                "driver": document.driver,
                "rehearsal": document.rehearsal,
            }
    if isinstance(gpu := found.get("proof", {}).get("gpu"), dict):
        gpu.pop("uuid", None)
        gpu.pop("seen", None)
    return found


def report(tools: DayTools, document: StepDocument, steps: tuple[str, ...]) -> None:
    """Write `report.md`: the tables of all steps, and what was not measured."""
    table = ResultTable("Steps", ["step", "state", "tables", "not measured"])
    parts: list[str] = []
    for name in steps:
        found = load(tools.out, name)
        row: list[Cell] = [name, "not begun", 0, None]
        if found is not None:
            row = [name, found.state, len(found.tables), len(found.not_measured)]
            parts.append(markdown(found))
        table.rows.append(row)
    document.tables, document.state = [table], "done"
    document.not_measured = [
        f"step {row[0]}: {row[1]}" for row in table.rows if row[1] not in ("done", "skipped")
    ]
    text = "\n".join(["# A day on a GPU", "", markdown(document), *parts])
    write_whole(tools.out / "report.md", text)


def bundle(out: Path, target: Path) -> None:
    """Write all results, without scratch files, into one archive: `target`, whole or not at all."""
    new = target.with_name(target.name + ".new")
    with tarfile.open(new, "w:gz") as archive:
        for file in sorted(out.rglob("*")):
            parts = file.relative_to(out).parts
            if (
                file.is_file()
                and parts[0] not in ("scratch", "samples", "mps")
                and "scratch" not in parts
            ):
                archive.add(file, str(Path("gpu-day", *parts)), filter=_anonymous)
    new.replace(target)


def unbundle(archive: Path, out: Path) -> None:
    """Take results of an earlier machine as they were."""
    with tarfile.open(archive) as packed:
        # Before Python 3.11.4.
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda one, path: one)
        for member in packed:
            member.name = str(Path(*Path(member.name).parts[1:]))
            if member.isfile() and not (out / member.name).exists():
                packed.extract(member, out)
