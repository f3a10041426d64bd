"""Jobs of many kinds, measured whole, and again with a part of their samples hidden."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from madelake import fill, held, job, summarized, utc
from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.tables import FINDINGS, GPU_SAMPLES
from tachograph.judge.checks import OF_RECORDING
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest

START = utc(2)
MINUTES, INTERVAL_S, GPUS = 130, 30, 4
COUNT = MINUTES * 60 // INTERVAL_S
Levels = dict[str, float]
Values = dict[str, npt.NDArray[np.float64]]

REST: Levels = {"power_w": 60.0, "gpu_temp_c": 35.0, "hbm_used_mib": 500.0}
TRAINING: Levels = {
    "gpu_util": 0.97, "sm_active": 0.8, "sm_occupancy": 0.4, "tensor_active": 0.4,
    "fp16_active": 0.05, "fp32_active": 0.1, "dram_active": 0.4, "power_w": 320.0,
    "gpu_temp_c": 60.0, "hbm_used_mib": 30000.0, "pcie_rx_bytes_per_s": 2e8,
}  # fmt: skip
LIGHT = TRAINING | {"gpu_util": 0.2, "sm_active": 0.1, "tensor_active": 0.03, "power_w": 110.0}
COPY: Levels = {"gpu_util": 1.0, "sm_active": 0.9, "sm_occupancy": 0.5, "dram_active": 0.9,
                "power_w": 300.0, "gpu_temp_c": 60.0, "hbm_used_mib": 30000.0}  # fmt: skip
STENCIL = TRAINING | {"tensor_active": 0.0, "fp64_active": 0.2, "dram_active": 0.85}
PLAIN = TRAINING | {"tensor_active": 0.0, "fp32_active": 0.5, "dram_active": 0.1}
WAITING: Levels = {"gpu_util": 1.0, "sm_active": 0.1, "power_w": 110.0, "hbm_used_mib": 30000.0}
COUNTERS = sorted(
    {*TRAINING, "fp64_active", "gr_engine_active", "throttle_reasons", "xid", "pcie_replays"}
)


def _series(levels: Callable[[int, float], Levels]) -> Callable[[], list[Values]]:
    """Samples of each GPU: `levels` gives what a GPU shows at a part of the run."""

    def made() -> list[Values]:
        gpus = []
        for gpu in range(GPUS):
            values = {name: np.zeros(COUNT) for name in COUNTERS}
            for place in range(COUNT):
                for name, level in (REST | levels(gpu, place / COUNT)).items():
                    values[name][place] = level
            values["gr_engine_active"] = values["gpu_util"]
            gpus.append(values)
        return gpus

    return made


def _from(begin: float, end: float, there: Levels, elsewhere: Levels) -> Callable[[], list[Values]]:
    return _series(lambda _, at: there if begin <= at < end else elsewhere)


KINDS: Mapping[str, Callable[[], list[Values]]] = {
    "training": _series(lambda _, at: TRAINING),
    "idle": _series(lambda _, at: {}),
    "light": _series(lambda _, at: LIGHT),
    "one of four": _series(lambda gpu, at: TRAINING if gpu == 2 else {}),
    "three of four": _series(lambda gpu, at: {} if gpu == 1 else TRAINING),
    "uneven": _series(lambda gpu, at: TRAINING if gpu < 2 else LIGHT),
    "stops": _from(0.0, 0.4, TRAINING, {}),
    "waits": _from(0.0, 0.4, TRAINING, WAITING),
    "begins late": _from(0.6, 1.0, TRAINING, {}),
    "stands still": _from(0.2, 0.75, {}, TRAINING),
    "bursts": _series(lambda _, at: TRAINING if int(at * 20) % 2 else {}),
    "copies": _series(lambda _, at: COPY),
    "stencil": _series(lambda _, at: STENCIL),
    "plain": _series(lambda _, at: PLAIN),
    "hot": _series(lambda _, at: TRAINING | {"gpu_temp_c": 95.0, "throttle_reasons": 64.0}),
    "full": _series(lambda _, at: TRAINING | {"hbm_used_mib": 80000.0 if at > 0.9 else 30000.0}),
    "broken": _series(lambda gpu, at: TRAINING | {"xid": 79.0 if gpu == 3 and at > 0.5 else 0.0}),
}


def hidings(chance: Random) -> Mapping[str, npt.NDArray[np.bool_]]:
    """What is left of the samples, per GPU and sample: one of each way to hide some."""
    at, gpu = np.arange(COUNT), np.arange(GPUS)[:, None]
    some = chance.randrange(GPUS)
    cut, width = chance.uniform(0.05, 0.9), chance.uniform(0.02, 0.5)
    within = (at >= cut * COUNT) & (at < (cut + width) * COUNT)
    minute = np.array([chance.random() < width for _ in range(MINUTES)])
    lost = np.repeat(minute, 60 // INTERVAL_S)
    mine = gpu == some
    return {
        "its end": np.broadcast_to(at < cut * COUNT, (GPUS, COUNT)),
        "its begin": np.broadcast_to(at >= cut * COUNT, (GPUS, COUNT)),
        "a part in between": np.broadcast_to(~within, (GPUS, COUNT)),
        "all but that part": np.broadcast_to(within, (GPUS, COUNT)),
        "some minutes": np.broadcast_to(~lost, (GPUS, COUNT)),
        "a GPU": np.broadcast_to(~mine, (GPUS, COUNT)),
        "a part of a GPU": ~(mine & within),
        "the end of all GPUs but one": mine | (at < cut * COUNT),
        "all but the first minutes": np.broadcast_to(at < 6, (GPUS, COUNT)),
        "all but one sample": np.broadcast_to(at == int(cut * COUNT), (GPUS, COUNT)),
    }


def _frame(node: str, gpu: int, values: Values, kept: npt.NDArray[np.bool_]) -> pl.DataFrame:
    times = [START + timedelta(seconds=INTERVAL_S * (place + 0.5)) for place in range(COUNT)]
    whole = pl.DataFrame(
        {"t": pl.Series(times, dtype=GPU_SAMPLES.schema["t"]), **values}
    ).with_columns(node=pl.lit(node), gpu=pl.lit(gpu))
    return whole.filter(pl.Series(kept))


def verdicts(
    folder: Path, kinds: Sequence[str], seeds: Sequence[int]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Analyze jobs in a new lake; return their findings, and what each job is.

    Findings: rows of `findings`. Jobs: job_id, `kind`, `hidden` ("" for the one measured whole),
    limiter, workload.
    """
    end = START + timedelta(minutes=MINUTES)
    jobs: list[dict[str, Any]] = []
    allocations: list[dict[str, Any]] = []
    frames: list[pl.DataFrame] = []
    known: list[dict[str, Any]] = []
    for kind in kinds:
        gpus = KINDS[kind]()
        ways = {"": np.ones((GPUS, COUNT), np.bool_)}
        for seed in seeds:
            hidden_ways = hidings(Random(f"{kind} {seed}"))
            ways |= {f"{what} ({seed})": kept for what, kept in hidden_ways.items()}
        for hidden, kept in ways.items():
            number = str(len(jobs) + 1)
            node = f"n{number}"
            jobs.append(job(number, START, end, gpus=GPUS, hbm_request="80g", cpus=64))
            allocations += held(number, node, range(GPUS))
            frames += [_frame(node, gpu, gpus[gpu], kept[gpu]) for gpu in range(GPUS)]
            known.append({"job_id": number, "kind": kind, "hidden": hidden})
    devices = [
        {"node": row["node"], "gpu": row["gpu"], "model": "NVIDIA A100-SXM4-80GB", "hbm_mib": 81920}
        for row in allocations
    ]
    samples = pl.concat(frames)
    schema = {name: dtype for name, dtype in GPU_SAMPLES.schema.items() if name != "seq"}
    samples = samples.select(
        pl.col(name).cast(dtype) if name in samples.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in schema.items()
    )
    lake = Lake.create(str(folder))
    now = datetime.fromisoformat("2026-04-03T00:00:00+00:00")
    fill(lake, {"jobs": jobs, "allocations": allocations, "devices": devices}, now=now)
    part = ChunkPart("gpu_samples", samples)
    ingest(lake, [Chunk("samples", "made", "samples", (part,), samples.height)], now=now)
    _, summaries = summarized(lake, now=now)
    for row in known:
        row |= {name: summaries[row["job_id"]][name] for name in ("limiter", "workload")}
    found = lake.scan(FINDINGS).select("job_id", "code", "verdict", "sentence").collect()
    return found, pl.DataFrame(known)


def contradictions(found: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Verdicts on jobs with hidden samples that are contradicted when the rest is shown."""
    told = found.join(known, on="job_id")
    whole = told.filter(pl.col("hidden") == "").select(
        "kind", "code", whole="verdict", sentence_whole="sentence"
    )
    part = told.filter(pl.col("hidden") != "", ~pl.col("code").is_in(OF_RECORDING))
    both = part.join(whole, on=["kind", "code"])
    decided = pl.col("verdict", "whole").is_in(["yes", "no"])
    return both.filter(pl.all_horizontal(decided), pl.col("verdict") != pl.col("whole"))
