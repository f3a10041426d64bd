"""What a submit line asks for."""

from __future__ import annotations

import pytest

from tachograph.sources.slurm.records import hbm_tier, read_submit_line


@pytest.mark.parametrize(
    ("line", "constraint"),
    [
        ("sbatch -C gpu&hbm80g job.sh", "gpu&hbm80g"),
        ('sbatch -C "gpu&hbm80g" job.sh', "gpu&hbm80g"),
        ("sbatch -Cgpu&hbm80g job.sh", "gpu&hbm80g"),
        ("sbatch --constraint=gpu&hbm80g job.sh", "gpu&hbm80g"),
        ("sbatch --constraint gpu&hbm80g job.sh", "gpu&hbm80g"),
        ("sbatch --constraint='[a100|h100]' job.sh", "[a100|h100]"),
        ("salloc -N 2 -t 10 -q interactive -C (gpu&hbm40g)", "(gpu&hbm40g)"),
        ("/usr/bin/srun -A m1 -G 4 -C gpu ./a.out -C mine", "gpu"),
        ("sbatch -HC gpu job.sh", "gpu"),
        ("sbatch job.sh -C hbm80g", None),  # an argument of the job's
        ("sbatch --wrap srun -C hbm80g ./a.out", None),
        ("sbatch --job-name -C -C gpu job.sh", "gpu"),
        ("sbatch -N 2", None),
        ("", None),
    ],
)
def test_the_constraint_of_a_submit_line(line: str, constraint: str | None) -> None:
    assert read_submit_line(line).constraint == constraint


@pytest.mark.parametrize(
    ("constraint", "tier"),
    [
        ("gpu&hbm80g", "80g"),
        ("gpu&hbm40g", "40g"),
        ("GPU&HBM80G", "80g"),
        ("(gpu&hbm80g)", "80g"),
        ("[hbm40g|hbm80g]", None),
        ("gpu&hbm80g*4", "80g"),
        ("gpu", None),
        ("nothbm80gpu", None),
        (None, None),
    ],
)
def test_the_memory_tier_of_a_constraint(constraint: str | None, tier: str | None) -> None:
    assert hbm_tier(constraint) == tier


@pytest.mark.parametrize(
    ("line", "exclusive"),
    [
        ("sbatch --exclusive job.sh", True),
        ("sbatch -N2 --exclusive -C gpu job.sh", True),
        ("sbatch --exclusive=user job.sh", None),
        ("sbatch --exclude=n1 job.sh", None),
        ("sbatch job.sh --exclusive", None),
    ],
)
def test_exclusive(line: str, exclusive: bool | None) -> None:
    assert read_submit_line(line).exclusive is exclusive


def test_each_component_has_its_own_options() -> None:
    line = "sbatch -J het -p cpu -C cpu : -p gpu --gpus=1 -C gpu&hbm80g --exclusive --wrap srun : -C other"
    assert (
        read_submit_line(line, 0).constraint,
        read_submit_line(line, 0).exclusive,
        read_submit_line(line, 0).requests_gpus,
    ) == (
        "cpu",
        None,
        False,
    )
    assert (
        read_submit_line(line, 1).constraint,
        read_submit_line(line, 1).exclusive,
        read_submit_line(line, 1).requests_gpus,
    ) == (
        "gpu&hbm80g",
        True,
        True,
    )
    assert read_submit_line(line).constraint is None  # which component is not told


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("sbatch --gpus=1 job.sh", True),
        ("sbatch -G 4 job.sh", True),
        ("sbatch --gres=gpu:a100:2 job.sh", True),
        ("sbatch --gpus-per-node 4 job.sh", True),
        ("sbatch --tres-per-task=gres/gpu:1 job.sh", True),
        ("sbatch --gres=nvme:1 -J gpu job.sh", False),
        ("sbatch job.sh --gpus=1", False),
    ],
)
def test_asking_for_gpus(line: str, asks: bool) -> None:
    assert read_submit_line(line).requests_gpus is asks


def test_a_very_long_line_of_quotes_is_read_in_time() -> None:
    assert read_submit_line("sbatch -C gpu " + "\"'" * 500_000).constraint == "gpu"
