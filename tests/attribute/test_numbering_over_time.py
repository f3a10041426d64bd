"""Two sources that number the GPUs of a node differently, in any hours and any order of files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from random import Random

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from in_memory import with_seq
from madelake import held, utc
from tachograph.catalog.chunks import ChunkPart, NumberedGpu
from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.tables import DEVICES, TIME
from tachograph.lake.conform import resolve
from tachograph.lake.numbering import NearSamples, renumbered
from tachograph.pipeline.gpu_numbers import with_own_indices

T = utc(1, 0)
Numbers = Mapping[int, str]
A: Numbers = {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}
OTHERS: tuple[Numbers, ...] = (
    {0: "GPU-b", 1: "GPU-a", 2: "GPU-c"},  # two swapped
    {0: "GPU-b", 1: "GPU-c", 2: "GPU-a"},
    {0: "GPU-a", 1: "GPU-c"},  # one fell off the bus
    {0: "GPU-d", 1: "GPU-b", 2: "GPU-c"},  # one was replaced
)
SAMPLES = pl.Schema({"t": TIME, "node": pl.String(), "gpu": pl.Int16(), "uuid": pl.String()})


def hour(number: int) -> datetime:
    return T + timedelta(hours=number)


class NodeInMemory:
    """What a lake knows of a node: devices, and samples of which the UUID is remembered."""

    def __init__(self) -> None:
        self.devices = DEVICES.empty()
        self.samples = pl.DataFrame(schema=SAMPLES)
        self.commits = 0

    def near(self, node: str, first: datetime, last: datetime) -> dict[int, NearSamples]:
        del node
        t = pl.col("t")
        inside = t.filter(t.is_between(first, last))
        ends = (t.filter(t < first).max(), inside.min(), inside.max(), t.filter(t > last).min())
        rows = self.samples.group_by("gpu").agg(
            [end.alias(str(place)) for place, end in enumerate(ends)]
        )
        return {gpu: NearSamples(*times) for gpu, *times in rows.iter_rows()}

    def read(self, *stretches: tuple[Numbers, int, int], step: timedelta) -> None:
        """Add a file with the samples of some hours by each numbering."""
        labels: list[NumberedGpu] = []
        samples: list[pl.DataFrame] = []
        for numbers, first, last in stretches:
            times = pl.datetime_range(hour(first), hour(last), step, closed="left", eager=True)
            span = (times[0], times[-1])
            for gpu, uuid in numbers.items():
                labels.append(NumberedGpu("n", gpu, None, uuid, None, "nvml_index", span))
                row = pl.DataFrame([{"node": "n", "gpu": gpu, "uuid": uuid}])
                samples.append(row.join(pl.DataFrame({"t": times}), how="cross"))
        rows = [(label.node, label.gpu, label.uuid, label.gpu) for label in labels]
        columns = ["node", "gpu", "uuid", "nvml_index"]
        devices = pl.DataFrame(rows, schema=columns, orient="row").unique("gpu", keep="last")
        devices = devices.with_columns(mig=pl.lit(None, dtype=pl.Int16))
        parts = [
            ChunkPart("gpu_samples", pl.concat(samples), gpus=tuple(labels)),
            ChunkPart("devices", devices, gpus=tuple(labels)),
        ]
        for part in renumbered(parts, self.devices, self.near):
            if part.table == "devices":
                self.commits += 1
                added = with_seq("devices", part.frame.to_dicts())
                added = added.with_columns(seq=pl.lit(self.commits, dtype=pl.Int64))
                self.devices = resolve(pl.concat([self.devices, added]), DEVICES)[0]
            else:
                new = part.frame.select(list(SAMPLES)).cast(SAMPLES)
                self.samples = pl.concat([self.samples, new])

    def of_job(self, gpu: int, first: int) -> set[str] | None:
        """UUIDs of the samples of a job that had a GPU in an hour; None: it is ambiguous."""
        rows = with_seq("allocations", held("7", "n", [gpu], hour(first), hour(first + 1)))
        index = with_own_indices(rows, self.devices, slurm=SlurmOptions())["gpu"].item()
        if index is None:
            return None
        during = pl.col("t").is_between(hour(first), hour(first + 1), closed="left")
        return set(self.samples.filter(during, gpu=index)["uuid"])


@settings(max_examples=settings().max_examples // 2, deadline=None)
@given(
    hours=st.lists(st.sampled_from(["", "A", "A", "B", "AB"]), min_size=1, max_size=6),
    other=st.sampled_from(OTHERS),
    step_s=st.sampled_from([60, 300, 600]),
    long_files=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_a_job_has_no_samples_of_another_gpu(
    hours: list[str], other: Numbers, step_s: int, long_files: bool, order: Random
) -> None:
    """Where one source alone is there its numbers count; where both are they must agree."""
    numbers, step = {"A": A, "B": other}, timedelta(seconds=step_s)
    files: list[tuple[str, int, int]] = []
    for source in numbers:
        for number, sources in enumerate(hours):
            if source in sources:
                before = files[-1] if files else None
                if long_files and before is not None and before[::2] == (source, number):
                    files[-1] = (source, before[1], number + 1)
                else:
                    files.append((source, number, number + 1))
    order.shuffle(files)
    node = NodeInMemory()
    for source, first, last in files:
        node.read((numbers[source], first, last), step=step)
    for number, sources in enumerate(hours):
        for gpu in A:
            named = {numbers[source][gpu] for source in sources if gpu in numbers[source]}
            found = node.of_job(gpu, number)
            assert not found or named == found
    # Two hours after the end of what contradicts, each GPU is known again, and all along.
    for number in range(len(hours), len(hours) + 2):
        node.read((A, number, number + 1), step=step)
    for gpu, uuid in A.items():
        assert node.of_job(gpu, len(hours) + 1) == {uuid}
    assert node.devices.height <= len(A) + 2


def test_a_file_with_both_numberings_of_a_node() -> None:
    """It repeats what the lake has, and goes on after the node was renumbered, and once more."""
    swapped, step = OTHERS[0], timedelta(minutes=10)
    node = NodeInMemory()
    node.read((A, 0, 5), step=step)
    node.read((A, 0, 5), (swapped, 30, 35), step=step)
    node.read((swapped, 31, 36), (A, 60, 65), step=step)
    for gpu in A:
        assert node.of_job(gpu, 2) == node.of_job(gpu, 62) == {A[gpu]}
        assert node.of_job(gpu, 32) == {swapped[gpu]}
    assert node.devices.height == len(A)


def test_a_file_with_series_that_linger_after_a_renumbering() -> None:
    """Numbers are unsure in the minutes of both alone, and the file is the only one."""
    node = NodeInMemory()
    node.read((A, -41, -29), step=timedelta(minutes=10))
    node.read((A, 0, 5), (A, 5, 6), (OTHERS[0], 5, 8), step=timedelta(hours=1))
    node.read((OTHERS[0], 30, 35), step=timedelta(minutes=10))
    found = [node.of_job(0, number) for number in (-30, 4, 5, 7, 31)]
    assert found == [{"GPU-a"}, {"GPU-a"}, None, {"GPU-b"}, {"GPU-b"}]


def test_a_source_that_is_there_for_a_part_of_the_time_of_another() -> None:
    node, lost = NodeInMemory(), OTHERS[2]
    for stretch in ((lost, 5, 6), (A, 1, 5), (lost, 0, 2)):
        node.read(stretch, step=timedelta(minutes=5))
    assert [node.of_job(1, number) for number in (1, 3, 5)] == [None, {"GPU-b"}, {"GPU-c"}]
