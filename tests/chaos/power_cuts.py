"""Cuts the power of a lake on ext4 while it is written, and compares: `make power-cuts` (CUTS=200).
Prints JSON.

The lake lies on an ext4 image behind a loop device. At moments by chance the writer is stopped, the
bytes of the image are copied (two copies in a row must be alike: the copy is of one moment), and
the writer goes on. Of a power cut the copy is what is left: it is mounted, which replays the
journal, and read. Every row, analysis and status that was reported as written before must be there,
whole. Names are written every second, contents not before half a minute: what a program does not
sync is lost as often as can be. Needs to mount (root) and a loop device.

    python tests/chaos/power_cuts.py --cuts 20
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

os.environ["POLARS_MAX_THREADS"] = "1"  # before polars is imported: lakes are small

import polars as pl
from child import Child
from disks import NoDiskError, mounted, umount
from kills import SEED, compiled_signatures, load_compiled, warm

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import ALL_TABLES, GPU_SAMPLES, JOB_SUMMARIES, JOBS
from tachograph.cli import main as tachograph
from tachograph.collect.status import CollectStatus, read_status, write_status
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_findings, read_gpus, read_summaries

IMAGE_MIB = 96
CUTS_A_RUN = 8
RUN_S = 4.0, 25.0  # a run is cut within a time between these
BEGUN = 3  # rounds that are there before every second run: the first checkpoint is near
ROUNDS = 60  # no run gets so far
POLLS = 12  # small commits in a row, of a stream
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 3, 5, tzinfo=UTC)
AS_OF = "2026-03-05T00:00:00"
_HEADER = (
    "timestamp,hostname,gpu_id,"
    "nersc_ldms_dcgm_gpu_utilization,nersc_ldms_dcgm_power_usage,nersc_ldms_dcgm_fb_used\n"
)
_SACCT = "JobID|JobIDRaw|Cluster|Partition|User|Submit|Start|End|Elapsed|State|NNodes|NodeList|AllocTRES|JobName\n"
FIRST_JOB = 1000
ROWS = 360  # of a file: an hour of a GPU
UNREADABLE, LOST = "unreadable", "lost"


@dataclass(slots=True)
class Outcome:
    """What came of the cuts so far."""

    cuts: int = 0
    runs: int = 0
    during: Counter[str] = field(default_factory=Counter)
    repaired: int = 0
    reported: int = 0  # reported as written, over all cuts
    wrong: list[dict[str, Any]] = field(default_factory=list)


# ------------------------------------------------------------------------------------------------------- the writer


def write_inputs(folder: Path) -> None:
    """Write the inputs of all rounds: samples of a node each, and the accounting of a job on it."""
    folder.mkdir()
    for number in range(ROUNDS):
        rows = [
            f"{START + timedelta(seconds=10 * place):%Y-%m-%dT%H:%M:%S},n{number},0,{place % 100},{200 + number},100\n"
            for place in range(ROWS)
        ]
        (folder / f"{number}.csv").write_text(_HEADER + "".join(rows))
        first, last = (
            f"{START + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S}" for second in (0, 10 * ROWS)
        )
        job = (
            f"{FIRST_JOB + number}|{FIRST_JOB + number}|c|gpu|ann|{first}|{first}|{last}"
            f"|01:00:00|COMPLETED|1|n{number}|cpu=4,gres/gpu=1|train\n"
        )
        (folder / f"{number}.txt").write_text(_SACCT + job)
        (folder / f"{number}.map").write_text(
            f"job_id,node,gpu\n{FIRST_JOB + number},n{number},0\n"
        )


def write(lake: Path, inputs: Path, reports: Path, rounds: range) -> int:
    """Do round after round; each line of `reports` is something that is written, or what begins."""
    with reports.open("a", buffering=1) as out:
        for number in rounds:
            _round(lake, inputs, number, out.write)
    return 0


def _round(lake: Path, inputs: Path, number: int, report: Callable[[str], object]) -> None:
    def do(what: str, *arguments: object, done: str) -> None:
        report(f"begin {what}\n")
        if tachograph([str(one) for one in (*arguments, "--lake", lake)]) == 0:
            report(f"{done}\n")

    if number % 2:
        do("compact", "lake", "compact", "--vacuum-hours", "0", done=f"compacted {number}")
    do("ingest", "ingest", "ldms", inputs / f"{number}.csv", done=f"samples {number}")
    do("ingest", "ingest", "sacct", inputs / f"{number}.txt", "--trusted", done=f"job {number}")
    do("ingest", "ingest", "allocation-map", inputs / f"{number}.map", done=f"map {number}")
    do("analyze", "analyze", "--threads", "1", "--as-of", AS_OF, done=f"analyzed {number}")
    report("begin collect\n")
    opened = Lake(str(lake))
    for poll in range(POLLS):
        ingest(opened, [_poll(number * POLLS + poll)], now=LATER)
        report(f"poll {number * POLLS + poll}\n")
    folder = lake / "_collect"
    folder.mkdir(exist_ok=True)
    write_status(
        folder, CollectStatus("1", str(lake), "host", number, started=START, updated=START)
    )
    report(f"status {number}\n")


def _poll(number: int) -> Chunk:
    """A minute of a stream."""
    begun = START + timedelta(minutes=number)
    times = [begun + timedelta(seconds=10 * place) for place in range(6)]
    frame = pl.DataFrame({"t": times, "node": "stream", "gpu": 0, "power_w": [100.0 + number] * 6})
    part = ChunkPart("gpu_samples", frame)
    return Chunk(
        "power:stream", "power", "stream", (part,), 6, watermark=begun + timedelta(minutes=1), since=begun
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- the reader


def judge(lake: Path, reported: list[str], found: Path) -> int:
    """Write to `found` what is wrong with a lake of which so much was reported as written, and
    what was repaired.
    """
    result: dict[str, Any] = {"repaired": [], "wrong": []}
    try:
        result["wrong"] = list(_differences(lake, reported))
    except LakeError as problem:
        result["repaired"] = [str(problem)]
        tachograph(["lake", "--repair", "--lake", str(lake)])
        try:
            result["wrong"] = list(_differences(lake, reported))
        except LakeError as still:
            result["wrong"] = [[UNREADABLE, str(still)]]
    found.write_text(json.dumps(result))
    return 0


def _differences(lake: Path, reported: list[str]) -> Iterator[list[str]]:
    """What was reported as written and is not there whole. Errors: LakeError."""
    opened = Lake(str(lake))
    for table in ALL_TABLES:
        if opened.delta(table) is not None:
            lies = opened.latest(table) if not table.by_day else opened.scan(table).collect()
            assert lies.height >= 0
            counted = sum(file.rows for file in opened.files(table))
            if opened.scan(table).collect().height != counted:
                yield [LOST, f"{table.name}: rows of a file"]
    samples = (
        dict(opened.latest(GPU_SAMPLES).group_by("node").len().iter_rows()) if reported else {}
    )
    jobs = set(opened.latest(JOBS)["job_id"]) if reported else set()
    polls = max(
        (int(line.split()[1]) + 1 for line in reported if line.startswith("poll ")), default=0
    )
    if polls * 6 > samples.get("stream", 0):
        yield [LOST, f"{polls} polls: {samples.get('stream', 0)} samples"]
    for what, _, number in (line.partition(" ") for line in reported):
        if what == "samples" and samples.get(f"n{number}", 0) != ROWS:
            yield [LOST, f"{what} {number}"]
        if what == "job" and str(FIRST_JOB + int(number)) not in jobs:
            yield [LOST, f"{what} {number}"]
    analyzed = {
        str(FIRST_JOB + int(line.split()[1])) for line in reported if line.startswith("analyzed ")
    }
    if analyzed:
        yield from _results(opened, analyzed)
    status = [int(line.split()[1]) for line in reported if line.startswith("status ")]
    if status:
        there = read_status(lake / "_collect")
        if there is None or there.pid < status[-1]:
            yield [LOST, f"status {status[-1]}: {there and there.pid}"]


def _results(lake: Lake, analyzed: set[str]) -> Iterator[list[str]]:
    """What is missing of the results of analyzed jobs."""
    summaries = read_summaries(lake).filter(pl.col("job_id").is_in(sorted(analyzed)))
    gpus = read_gpus(lake, summaries)
    if summaries.height != len(analyzed) or gpus.height != len(analyzed):
        yield [LOST, f"{len(analyzed)} analyzed: {summaries.height} summaries, {gpus.height} GPUs"]
    read_findings(lake, summaries)
    if lake.latest(JOB_SUMMARIES).height < len(analyzed):
        yield [LOST, "summaries"]


# --------------------------------------------------------------------------------------------------------- the cuts


@contextmanager
def image_mounted(image: Path, folder: Path) -> Iterator[Path]:
    """An image, seen as a folder; its journal is replayed."""
    folder.mkdir(exist_ok=True)
    mounted("-o", "loop,commit=1", str(image), str(folder))
    try:
        yield folder
    finally:
        umount(folder)


def new_image(path: Path) -> None:
    """Make an empty ext4 image."""
    with path.open("wb") as stream:
        stream.truncate(IMAGE_MIB << 20)
    command = [
        "mkfs.ext4",
        "-q",
        "-F",
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0",
        "-J",
        "size=4",
        str(path),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise NoDiskError("mkfs.ext4 is not installed") from None
    if done.returncode:
        raise NoDiskError(done.stderr.strip())


def copy_of_one_moment(image: Path, to: Path) -> None:
    """Copy an image whose writer is stopped: as it was at one moment, with what the kernel had
    written of it.
    """
    before = b""
    for _ in range(100):
        now = image.read_bytes()
        if now == before:
            to.write_bytes(now)
            return
        before = now
    raise RuntimeError("the image never stood still")


class PowerCuts:
    """The cuts: a folder for images, a source of chance, and what came of it so far."""

    def __init__(self, folder: Path, *, seed: int, longest_s: float) -> None:
        self.folder, self.chance, self.longest_s = folder, random.Random(seed), longest_s
        self.outcome = Outcome()
        self.inputs, self.printed = folder / "inputs", folder / "printed.txt"
        write_inputs(self.inputs)
        warm()
        self._compile()
        self.images = [folder / "empty.img", folder / "begun.img"]
        self.reported = [folder / "empty.txt", folder / "begun.txt"]  # of what is in the images
        self.reported[0].write_text("")
        new_image(self.images[0])
        shutil.copyfile(self.images[0], self.images[1])
        with image_mounted(self.images[1], folder / "disk") as disk:
            begin = partial(write, disk / "lake", self.inputs, self.reported[1], range(BEGUN))
            if Child(begin, self.printed).wait():
                raise RuntimeError(self.printed.read_text()[-2000:])

    def _compile(self) -> None:
        """Load what an analysis compiles, so that no run waits for it."""
        lake, found = self.folder / "compiled", self.folder / "compiled.pickle"

        def work() -> int:
            code = write(lake, self.inputs, self.folder / "none.txt", range(1))
            found.write_bytes(pickle.dumps(compiled_signatures()))
            return code

        if Child(work, self.printed).wait():
            raise RuntimeError(self.printed.read_text()[-2000:])
        load_compiled(pickle.loads(found.read_bytes()))

    def run(self, cuts: int) -> None:
        """Write until so many cuts are copied, then look at each."""
        image, reports = self.folder / "this.img", self.folder / "reports.txt"
        begun_before = 1 - self.outcome.runs % 2
        self.outcome.runs += 1
        shutil.copyfile(self.images[begun_before], image)
        shutil.copyfile(self.reported[begun_before], reports)
        copies: list[tuple[Path, list[str]]] = []
        with image_mounted(image, self.folder / "disk") as disk:
            rounds = range(BEGUN * begun_before, ROUNDS)
            child = Child(partial(write, disk / "lake", self.inputs, reports, rounds), self.printed)
            begun, length_s = time.monotonic(), self.chance.uniform(RUN_S[0], self.longest_s)
            moments = sorted(self.chance.uniform(0.2, length_s) for _ in range(cuts))
            try:
                for number, moment in enumerate(moments):
                    time.sleep(max(0.0, begun + moment - time.monotonic()))
                    if child.poll() is not None:
                        raise RuntimeError(f"the writer ended: {self.printed.read_text()[-2000:]}")
                    os.kill(child.id, signal.SIGSTOP)
                    wait_stopped(child.id)
                    reported = reports.read_text().splitlines()
                    copy = self.folder / f"cut-{number}.img"
                    copy_of_one_moment(image, copy)
                    os.kill(child.id, signal.SIGCONT)
                    copies.append((copy, reported))
            finally:
                os.kill(child.id, signal.SIGKILL)
                child.wait()
        for copy, reported in copies:
            self.look(copy, reported)
            copy.unlink()

    def look(self, copy: Path, reported: list[str]) -> None:
        """Mount a copy and judge it."""
        doing = next(
            (
                line.removeprefix("begin ")
                for line in reversed(reported)
                if line.startswith("begin ")
            ),
            "",
        )
        found = self.folder / "found.json"
        found.unlink(missing_ok=True)
        written = [line for line in reported if not line.startswith("begin ")]
        with image_mounted(copy, self.folder / "left") as left:
            code = Child(partial(judge, left / "lake", written, found), self.printed).wait()
        result = (
            json.loads(found.read_text())
            if found.exists()
            else {"wrong": [[UNREADABLE, f"exit code {code}"]]}
        )
        self.outcome.cuts += 1
        self.outcome.during[doing] += 1
        self.outcome.reported += len(written)
        self.outcome.repaired += bool(result.get("repaired"))
        if result["wrong"]:
            self.outcome.wrong.append(
                {"during": doing, "reported": len(written), "found": result["wrong"][:5]}
            )


def wait_stopped(process: int) -> None:
    """Return once a process has stopped."""
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":
        time.sleep(0.0005)


def cut(cuts: int, *, seed: int, longest_s: float) -> dict[str, Any]:
    """Run so many cuts; return the result as it is printed, or why nothing can be mounted."""
    begun = time.monotonic()
    memory = "/dev/shm" if shutil.disk_usage("/dev/shm").free > 4 << 30 else None
    with tempfile.TemporaryDirectory(prefix="power-cuts-", dir=memory) as name:
        try:
            trials = PowerCuts(Path(name), seed=seed, longest_s=longest_s)
            of_run = min(CUTS_A_RUN, (cuts + 1) // 2)
            while trials.outcome.cuts < cuts:
                trials.run(min(of_run, cuts - trials.outcome.cuts))
                sys.stderr.write(
                    f"{trials.outcome.cuts} of {cuts} cuts, {len(trials.outcome.wrong)} wrong\n"
                )
        except NoDiskError as problem:
            return {"skipped": str(problem)}
    outcome = trials.outcome
    kinds = Counter(kind for one in outcome.wrong for kind in {found[0] for found in one["found"]})
    return {
        "cuts": outcome.cuts,
        "runs": outcome.runs,
        "during": dict(outcome.during),
        "reported_as_written": outcome.reported,
        "needed_repair": outcome.repaired,
        "unreadable": kinds[UNREADABLE],
        "lost_what_was_reported": kinds[LOST],
        "seed": seed,
        "seconds": round(time.monotonic() - begun),
        "wrong": outcome.wrong,
    }


def main() -> int:
    """Cut, print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=RUN_S[1], help="a run is not longer")
    options = parser.parse_args()
    result = cut(options.cuts, seed=options.seed, longest_s=options.seconds)
    sys.stdout.write(f"{json.dumps(result, indent=1)}\n")
    return 1 if result.get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
