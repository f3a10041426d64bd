"""Fills the disk under every command, frees it, runs the command again, and compares; then makes
the lake read-only.

A trial takes the lake as it was before a step, on a disk with so much room left, and less than the
step needs. The step must report so in one line and end with exit code 5; with more room it must end
as if the disk had never been full. Needs to mount a tmpfs, and a bind mount read-only. Prints a
JSON object; 1 when some trial went otherwise.

    python tests/chaos/disks.py --sizes 2
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from child import Child
from kills import SEED, Chaos, Reference, prepared

from tachograph.cli import main as tachograph

LARGE = "64m"
NEEDED_KIB = 300  # no step of the story needs more
FULL, NOT_PERMITTED = "the disk is full", "not permitted"
LAKE_ERROR = 5
STATUS = ("status",)
READING = (
    ("lake",),
    ("jobs",),
    ("job", "1"),
    STATUS,
    ("lake", "--json"),
    ("jobs", "--json"),
    ("job", "1", "--json"),
)
# Steps that are commands; the others are not reported in one line.
BY_COMMAND = "ingest analyze compact"


class NoDiskError(Exception):
    """No disk can be mounted here."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk that `resize` makes smaller and larger."""
    folder.mkdir(exist_ok=True)
    mounted("-t", "tmpfs", "-o", f"size={LARGE}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        umount(folder)


@contextmanager
def read_only(folder: Path, there: Path) -> Iterator[Path]:
    """`folder`, seen at another place, where nothing can be written."""
    there.mkdir(exist_ok=True)
    mounted("--bind", str(folder), str(there))
    try:
        mounted("-o", "remount,ro,bind", str(there))
        yield there
    finally:
        umount(there)


def mounted(*arguments: str) -> None:
    """Mount. Errors: NoDiskError."""
    if os.geteuid():
        raise NoDiskError("only the superuser may mount a disk")
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise NoDiskError(done.stderr.strip())


def umount(folder: Path) -> None:
    """Undo a mount."""
    subprocess.run(["umount", str(folder)], check=True)


def resize(disk: Path, room_kib: int | None) -> None:
    """Leave so much room on the disk; None: plenty."""
    blocks = os.statvfs(disk)
    used_kib = (blocks.f_blocks - blocks.f_bfree) * blocks.f_frsize // 1024
    # A disk of size 0 has no limit; one smaller than what is on it is refused.
    for more in range(4, 64, 4):
        size = LARGE if room_kib is None else f"{used_kib + room_kib + more}k"
        done = subprocess.run(
            ["mount", "-o", f"remount,size={size}", str(disk)], capture_output=True, text=True
        )
        if done.returncode == 0:
            return
    raise RuntimeError(f"{disk} cannot be made {size} large: {done.stderr}")


class Disks:
    """The trials on a small disk, over the steps of a story."""

    def __init__(self, chaos: Chaos, disk: Path) -> None:
        self.chaos, self.disk = chaos, disk
        self.full: Counter[str] = Counter()
        self.fitted: Counter[str] = Counter()
        self.wrong: list[dict[str, Any]] = []

    def trial(self, reference: Reference, room_kib: int) -> None:
        """Run a step where there is too little room, then where there is enough."""
        lake = self.disk / "lake"
        resize(self.disk, None)
        shutil.rmtree(lake, ignore_errors=True)
        shutil.copytree(reference.before, lake)
        resize(self.disk, room_kib)
        code, printed = self._run(reference, lake)
        resize(self.disk, None)
        if code == 0:
            self.fitted[reference.step.name] += 1
        else:
            self.full[reference.step.name] += 1
        if code not in (0, LAKE_ERROR) or (code and not one_line(printed, FULL)):
            self._note(reference, room_kib, {"code": code, "said": printed[-600:]})
        again, printed = self._run(reference, lake)
        seen = self.chaos.seen(lake)
        if again or seen != reference.after:
            different = {
                what: [seen.get(what), rows]
                for what, rows in reference.after.items()
                if seen.get(what) != rows
            }
            self._note(
                reference,
                room_kib,
                {"code again": again, "said": printed[-600:], "different": different},
            )

    def _run(self, reference: Reference, lake: Path) -> tuple[int, str]:
        return run(lambda: reference.step.work(lake), self.chaos.folder)

    def _note(self, reference: Reference, room_kib: int, what: dict[str, Any]) -> None:
        self.wrong.append({"step": reference.step.name, "room_kib": room_kib} | what)


def run(work: Callable[[], int], folder: Path) -> tuple[int, str]:
    """Do some work in a child; return its exit code and what it reported."""
    printed = folder / "this.txt"
    printed.unlink(missing_ok=True)
    return Child(work, printed).wait(), printed.read_text()


def one_line(printed: str, what: str) -> bool:
    """Whether it was reported in one line of `tachograph` that holds `what` and what to do."""
    lines = [line for line in printed.splitlines() if line.startswith("tachograph: ")]
    return len(lines) == 1 and what in lines[0] and "; " in lines[0] and "Traceback" not in printed


def read_only_lake(chaos: Chaos, lake: Path) -> dict[str, Any]:
    """Run every command over a lake that can only be read; return {command: exit code}, and what
    was wrong.
    """
    inputs = chaos.folder / "inputs"
    writing = (("ingest", "ldms", inputs / "late"), ("analyze", "--full"), ("lake", "compact"))
    codes, wrong = {}, []
    before = listing(lake)
    with read_only(lake, chaos.folder / "read-only") as there:
        for words in (*READING, *writing):
            arguments = [str(word) for word in (*words, "--lake", there)]
            code, printed = run(partial(tachograph, arguments), chaos.folder)
            codes[" ".join(map(str, words)).replace(str(inputs), "...")] = code
            wanted = (0, 1) if words == STATUS else (0,)  # 1: no one collects any more
            read = code in wanted and "tachograph: " not in printed
            good = (
                read
                if words in READING
                else code == LAKE_ERROR and one_line(printed, NOT_PERMITTED)
            )
            if not good:
                wrong.append({"command": arguments, "code": code, "said": printed[-600:]})
    if listing(lake) != before:
        wrong.append({"written": sorted(set(listing(lake)) ^ set(before))})
    return {"commands": codes, "wrong": wrong}


def listing(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of everything in a folder."""
    return sorted(
        (str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")
    )


def rooms(chaos: Chaos, sizes: int) -> dict[str, list[int]]:
    """Return how much room (KiB) each command has, from nothing to nearly enough; other ones for
    each.
    """
    steps = [reference.step.name for reference in chaos.references]
    return {
        name: [
            int(NEEDED_KIB * ((number + place * 0.381966) % sizes / sizes) ** 2)
            for number in range(sizes)
        ]
        for place, name in enumerate(steps)
        if name.split()[0] in BY_COMMAND
    }


def main() -> int:
    """Run the trials, print what came of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, default=8, help="disks per step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="disks-") as name:
        chaos = prepared(Path(name), seed=SEED)
        result = fill(chaos, rooms(chaos, options.sizes))
    sys.stdout.write(f"{json.dumps(result, indent=1)}\n")
    return 1 if result.get("wrong") else 0


def fill(chaos: Chaos, rooms: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Run the trials: {step: KiB of room of each}; return what is printed, or why no disk can be
    mounted.
    """
    begun = time.monotonic()
    references = {reference.step.name: reference for reference in chaos.references}
    try:
        with small_disk(chaos.folder / "disk") as disk:
            trials = Disks(chaos, disk)
            for name, of_step in rooms.items():
                for room_kib in of_step:
                    trials.trial(references[name], room_kib)
        closed = read_only_lake(chaos, references["ingest late samples"].before)
    except NoDiskError as problem:
        return {"skipped": str(problem)}
    return {
        "full": dict(trials.full),
        "fitted": dict(trials.fitted),
        "read_only": closed["commands"],
        "seconds": round(time.monotonic() - begun),
        "wrong": [*trials.wrong, *closed["wrong"]],
    }


if __name__ == "__main__":
    sys.exit(main())
