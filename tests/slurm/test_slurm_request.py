"""What a submit line asks for."""

from __future__ import annotations

import pytest

from tachograph.sources.slurm.records import hbm_tier, submit_constraint


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
    assert submit_constraint(line) == constraint


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


def test_each_component_has_its_own_constraint() -> None:
    line = (
        "sbatch -J het -p cpu -C cpu : -p gpu --gpus=1 -C gpu&hbm80g --exclusive --wrap "
        "srun : -C other"
    )
    assert [submit_constraint(line, offset) for offset in (0, 1, 2)] == ["cpu", "gpu&hbm80g", None]
    assert submit_constraint(line) is None  # which component is not told


def test_a_very_long_line_of_quotes_is_read_in_time() -> None:
    assert submit_constraint("sbatch -C gpu " + "\"'" * 500_000) == "gpu"
