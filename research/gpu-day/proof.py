"""Proof on a real GPU: labelled workloads are recorded, judged live, compared with nvidia-smi;
recording is weighed.

    python research/gpu-day/proof.py --out DIR

Needs a GPU nobody else uses, its driver, PyTorch with CUDA, and Tachograph in the Python that runs
it. DIR gets `results.json`, written anew after every workload, and `samples/NAME.parquet`. What is
there already is not done again, so that it can be cut into pieces. `--rehearse` goes the same way
without a GPU, in a few minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from proof_labels import LABELS, Label
from proof_numbers import (
    agreement,
    checked,
    energy,
    failures,
    order,
    overhead,
    shares,
    smi_readings,
    steady,
    verdict,
)

import tachograph

HERE = Path(__file__).resolve().parent
SETTLE_S = 8.0  # so long into a run nothing is judged
# Live classes are of means: here of half that time, not of 30 s.
SMOOTHING = "TACHOGRAPH_WORKLOAD_SMOOTHING_S"
INTERVAL_S = 0.1
_START_S = 300.0  # so long Python, PyTorch and CUDA may take


@dataclass(frozen=True, slots=True)
class Proof:
    """How it is done. environment: of every program that is started; smi: what prints
    utilization, empty: nothing.
    """

    out: Path
    gpu: int
    seconds: float
    settle_s: float
    repeats: int
    window_s: float
    rehearse: bool
    environment: Mapping[str, str]
    smi: Sequence[str]

    def tachograph(self, *words: str) -> list[str]:
        """A command of Tachograph, in this Python."""
        return [sys.executable, "-m", "tachograph", *words]

    def workload(self, label: Label, result: Path, seconds: float) -> list[str]:
        """The program that does the work."""
        words = [label.name, "--seconds", f"{seconds:g}", "--result", str(result)]
        return [
            sys.executable,
            str(HERE / "workloads.py"),
            *words,
            *(["--rehearse"] if self.rehearse else []),
        ]

    def recorded(self, command: Sequence[str], folder: Path) -> list[str]:
        """The same program, recorded."""
        options = [
            "--quiet",
            "--source",
            "nvml",
            "--gpus",
            str(self.gpu),
            "--interval",
            str(INTERVAL_S),
            "--anonymous",
        ]
        return self.tachograph("record", *options, "--output", str(folder), "--", *command)

    def run(self, command: Sequence[str], seconds: float) -> None:
        """Run a program to its end. Errors: ProofError, TimeoutExpired."""
        done = subprocess.run(
            command,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds + _START_S,
        )
        if done.returncode:
            printed = (
                done.stderr.strip() or done.stdout.strip() or "nothing was said"
            ).splitlines()[-1]
            raise ProofError(f"{Path(command[1]).name} ended with {done.returncode}: {printed}")


class ProofError(Exception):
    """A program did not do what it should; the next workload is tried."""


@contextmanager
def beside(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[list[tuple[float, str]]]:
    """Run a program meanwhile; the list gets its lines with the time they came."""
    lines: list[tuple[float, str]] = []
    if not command:
        yield lines
        return
    with subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        stream = process.stdout
        assert stream is not None
        reader = threading.Thread(
            target=lambda: lines.extend((time.time(), line) for line in stream), daemon=True
        )
        reader.start()
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            reader.join(10)


def show(proof: Proof, label: Label) -> dict[str, Any]:
    """Record one workload and judge it live; return what was found."""
    with scratch(proof, label) as folder:
        result, recording = folder / "result.json", folder / "recording"
        # The library of the tests knows moments, GPM means.
        every = "0.25" if proof.rehearse else "1"
        watch = proof.tachograph(
            "watch", "--json", "--interval", every, "--source", "nvml", "--gpus", str(proof.gpu)
        )
        with beside(watch, proof.environment) as live, beside(proof.smi, proof.environment) as smi:
            proof.run(
                proof.recorded(proof.workload(label, result, proof.seconds), recording),
                proof.seconds,
            )
        reported = json.loads(result.read_text(encoding="utf-8"))
        first, last = steady(reported["begin"], reported["end"], label, settle_s=proof.settle_s)
        columns, t = samples(recording, label, proof)
    inside = (t >= first) & (t <= last)
    if not inside.any():
        raise ProofError("nothing was recorded while it worked")
    looks = classes([line for _, line in live], first, last)
    found = shares(looks)
    checks = []
    for check in label.checks:
        column = columns.get(check.counter)
        value, holds = checked(check, None if column is None else column[inside])
        checks.append({"expected": check.sentence, "found": value, "ok": holds})
    known = {
        name: column[inside]
        for name, column in columns.items()
        if np.isfinite(column[inside]).any()
    }
    during = [one for one in smi_readings(smi) if reported["begin"] <= one[0] <= reported["end"]]
    same = agreement(t, columns.get("gpu_util", np.full(t.size, math.nan)), during)
    nothing = np.full(t.size, math.nan)
    drawn = energy(
        t[inside], columns.get("power_w", nothing)[inside], columns.get("energy_j", nothing)[inside]
    )
    return {
        "does": label.does,
        "why": label.why,
        "expected": list(label.classes),
        "looks": len(looks),
        "shares": found,
        "class_ok": verdict(label, found),
        "checks": checks,
        "means": {name: float(np.nanmean(column)) for name, column in known.items()},
        "samples": int(inside.sum()),
        "samples_per_s": float(inside.sum()) / max(1e-9, last - first),
        "rate": reported["rate"],
        "energy": None if drawn is None else asdict(drawn),
        "nvidia_smi": None if same is None else asdict(same),
        "ok": verdict(label, found) and all(one["ok"] for one in checks),
    }


def samples(recording: Path, label: Label, proof: Proof) -> tuple[dict[str, Any], Any]:
    """Keep the samples of a recording as sample data; return its counters and times (seconds
    since 1970).
    """
    import polars as pl

    from tachograph.catalog.counters import COUNTER_NAMES
    from tachograph.catalog.tables import GPU_SAMPLES
    from tachograph.lake.delta import Lake

    frame = Lake.open(str(recording)).scan(GPU_SAMPLES).sort("t").collect()
    if frame.is_empty():
        raise ProofError("nothing was recorded")
    reported = [
        name
        for name in COUNTER_NAMES
        if name in frame.columns and frame[name].null_count() < frame.height
    ]
    kept = frame.select(pl.lit(label.name).alias("label"), "t", "node", "gpu", *reported)
    target = proof.out / "samples"
    target.mkdir(parents=True, exist_ok=True)
    kept.write_parquet(target / f"{label.name}.parquet", compression="zstd", compression_level=19)
    t = frame["t"].dt.timestamp("us").to_numpy() / 1e6
    return {
        name: frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy() for name in reported
    }, t


def classes(lines: Sequence[str], first: float, last: float) -> list[str]:
    """Return the live classes of the GPU between two moments."""
    found = []
    for line in lines:
        try:
            (gpu,) = json.loads(line)
        except ValueError:  # cut off at the end, or not one GPU
            continue
        if first <= datetime.fromisoformat(gpu["t"]).timestamp() <= last:
            found.append(str(gpu["class"]))
    return found


def weigh(proof: Proof, label: Label) -> dict[str, Any] | None:
    """Return what recording costs a workload: pairs of runs, by turns; None of one that does
    nothing countable.
    """
    if not label.counts or proof.repeats < 2:
        return None
    rates: dict[bool, list[float]] = {False: [], True: []}
    for repeat in range(proof.repeats):
        for is_recorded in order(repeat):
            with scratch(proof, label) as folder:
                command = proof.workload(label, folder / "result.json", proof.window_s)
                proof.run(
                    proof.recorded(command, folder / "recording") if is_recorded else command,
                    proof.window_s,
                )
                reported = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            rates[is_recorded].append(float(reported["rate"] or 0.0))
    found = overhead(rates[False], rates[True])
    return {
        **(asdict(found) if found else {}),
        "rates_without": rates[False],
        "rates_recorded": rates[True],
    }


@contextmanager
def scratch(proof: Proof, label: Label) -> Iterator[Path]:
    """A folder for one run, gone behind it."""
    folder = proof.out / "scratch" / label.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def look(proof: Proof) -> dict[str, Any]:
    """Return what NVML tells of the GPU. Errors: ProofError where it tells nothing."""
    command = proof.tachograph(
        "watch", "--once", "--json", "--source", "nvml", "--gpus", str(proof.gpu)
    )
    done = subprocess.run(
        command,
        env=dict(proof.environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise ProofError(done.stderr.strip() or "tachograph watch tells nothing")
    (gpu,) = json.loads(done.stdout)
    return {
        "model": gpu["model"],
        "uuid": gpu["uuid"],
        "seen": done.stderr.strip().splitlines(),
        "missing": [
            name
            for name, value in gpu.items()
            if value is None and name not in ("mig", "job_id", "user")
        ],
    }


def proof_of(arguments: argparse.Namespace) -> Proof:
    """What the options ask for."""
    out = Path(arguments.out).absolute()
    rehearse = bool(arguments.rehearse)
    if rehearse:
        from proof_rehearsal import environment, smi_command

        reported = environment(out / "scratch" / "rehearsal")
        smi: list[str] = smi_command(Path(reported["FAKE_NVML_STATE"]))
    else:
        program = shutil.which("nvidia-smi")
        query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500"]
        smi = [program, "-i", str(arguments.gpu), *query] if program else []
        reported = dict(os.environ)
    reported = {
        name: value for name, value in reported.items() if not name.startswith("SLURM_")
    }  # all GPUs, by their index
    seconds = arguments.seconds or (6.0 if rehearse else 60.0)
    settle_s = min(SETTLE_S, seconds / 4)
    reported[SMOOTHING] = f"{settle_s / 2:g}"
    return Proof(
        out,
        arguments.gpu,
        seconds,
        settle_s,
        arguments.repeats if arguments.repeats is not None else (2 if rehearse else 10),
        arguments.window or (0.5 if rehearse else 10.0),
        rehearse,
        reported,
        smi,
    )


def main() -> int:
    """Do all that is not done yet; 0 where everything came out as expected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of results and samples")
    parser.add_argument("--gpu", type=int, default=0, help="its index in NVML (default: 0)")
    parser.add_argument("--only", metavar="NAMES", default="", help="some workloads, with commas")
    parser.add_argument(
        "--seconds", type=float, help="of each workload that is shown (default: 60)"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        help="pairs of runs with and without recording (default: 10; 0: none)",
    )
    parser.add_argument("--window", type=float, help="seconds of each of these runs (default: 10)")
    parser.add_argument(
        "--minutes", type=float, help="begin no further workload when so much time has passed"
    )
    parser.add_argument("--again", action="store_true", help="do it again where results are there")
    parser.add_argument(
        "--rehearse", action="store_true", help="without a GPU, through the library of tests/nvml"
    )
    arguments = parser.parse_args()
    chosen = [
        label for label in LABELS if not arguments.only or label.name in arguments.only.split(",")
    ]
    if not chosen:
        parser.error(
            f"--only {arguments.only}: use some of {', '.join(label.name for label in LABELS)}"
        )
    proof = proof_of(arguments)
    proof.out.mkdir(parents=True, exist_ok=True)
    file = proof.out / "results.json"
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"workloads": {}}
    gpu = look(proof)
    results |= {
        "gpu": gpu,
        "tachograph": tachograph.__version__,
        "python": platform.python_version(),
    }
    results |= {"rehearsal": proof.rehearse, "interval_s": INTERVAL_S, "seconds": proof.seconds}
    results |= {"settle_s": proof.settle_s, "smoothing_s": float(proof.environment[SMOOTHING])}
    _with_gpu(proof, gpu)
    end = math.inf if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    for label in chosen:
        reported = results["workloads"].setdefault(label.name, {})
        for part, work in (("shown", show), ("overhead", weigh)):
            if (part not in reported.get("done", ()) or arguments.again) and time.monotonic() < end:
                _say(f"{label.name}: {part}")
                _do(reported, part, work, proof, label)
                results["made"] = datetime.now(UTC).isoformat(timespec="seconds")
                results["failures"] = failures(results["workloads"])
                file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(proof.out / "scratch", ignore_errors=True)
    for sentence in results.get("failures", ()):
        _say(sentence)
    return 1 if results.get("failures") else 0


def _with_gpu(proof: Proof, gpu: Mapping[str, Any]) -> None:
    """Let CUDA see the GPU that NVML was asked about: their orders differ."""
    if gpu["uuid"] and not proof.rehearse:
        assert isinstance(proof.environment, dict)
        proof.environment["CUDA_VISIBLE_DEVICES"] = gpu["uuid"]


def _do(reported: dict[str, Any], part: str, work: Any, proof: Proof, label: Label) -> None:
    """One part of one workload; what fails is told, and tried again by the next run."""
    if str(reported.get("error")).startswith(f"{part}:"):
        del reported["error"]
    try:
        found = work(proof, label)
    except (ProofError, OSError, subprocess.SubprocessError, ValueError) as error:
        reported["error"] = f"{part}: {error}"
        return
    if part == "shown":
        reported.update(found)
    else:
        reported["overhead"] = found
    reported["done"] = sorted({*reported.get("done", ()), part})


def _say(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
