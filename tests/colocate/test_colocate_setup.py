"""What `colocate` says to type: valid, within the memory, and never a word that a user chose."""

from __future__ import annotations

import os
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_colocate_pairs import GIB, SETTINGS, group, kernel, one_pair, some_groups

from tachograph.annexes.share.proposals import CONTEXT_BYTES, SHARING_MODES, SharingProposal
from tachograph.annexes.share.sharing_setup import (
    cautions,
    memory_limits_mib,
    probation,
    setup_steps,
)
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.mig import MIG_PROFILES
from tachograph.catalog.units import MI

HOSTILE = "$(touch /tmp/x); `reboot` && rm -rf ~ | {gpus} %s\n--gres=gpu:9"
ZERO = kernel(0.0, dram=0.0)


def proposals() -> dict[str, SharingProposal]:
    """A proposal of each mode, and trials; of one user and of several, on one and more GPUs."""
    narrow: dict[str, Any] = {"width": 0.05, "dram": 0.01, "busy": 0.95}
    wide: dict[str, Any] = {"busy": 1.0, "width": 1.0, "kernels": [kernel(0.9)]}
    limit = InterferenceOptions(max_slowdown=1.13)
    return {
        "time_slicing": one_pair(group(busy=0.05), group(busy=0.04)),
        "time_slicing of 4": one_pair(group(busy=0.05, gpus=4), group(busy=0.04, gpus=4)),
        "mps": one_pair(group(kernels=[ZERO]), group(kernels=[ZERO])),
        "mps tried by two": one_pair(group(gpus=4), group(gpus=4, user="bob")),
        "mps_share": one_pair(group(**wide), group(**wide), settings=limit),
        "mig": one_pair(group(**narrow), group(**narrow)),
    }


PROPOSALS = proposals()


def lines_of(proposal: SharingProposal, title: str) -> str:
    (step,) = (step for step in setup_steps(proposal, SETTINGS) if step.title.startswith(title))
    return step.lines


def test_there_is_a_proposal_of_each_mode() -> None:
    for name, proposal in PROPOSALS.items():
        assert proposal.best is not None
        assert proposal.best.mode == name.split()[0]
        assert setup_steps(proposal, SETTINGS)
        assert len(probation(proposal, SETTINGS)) == 3
    assert {name.split()[0] for name in PROPOSALS} == set(SHARING_MODES)


@pytest.mark.parametrize("name", PROPOSALS)
def test_every_line_is_shell_or_yaml_or_python(name: str) -> None:
    for step in setup_steps(PROPOSALS[name], SETTINGS):
        assert not re.search(r"[{}]", step.lines.replace("{limits: {", "").replace("}}", ""))
        if step.title.startswith("Kubernetes"):
            each_line = step.lines.startswith("resources:")
            for document in step.lines.splitlines() if each_line else [step.lines]:
                assert isinstance(yaml.safe_load(document), dict)
            continue
        shell = "\n".join(line for line in step.lines.splitlines() if not line.startswith("torch."))
        done = subprocess.run(
            ["/bin/sh", "-n"], input=shell, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), shell


@pytest.mark.parametrize("name", ["mps", "mps tried by two", "mps_share", "time_slicing"])
def test_the_script_for_both_starts_both_with_their_limits(name: str, tmp_path: Path) -> None:
    proposal = PROPOSALS[name]
    for script in ("first.sh", "second.sh"):
        (tmp_path / script).write_text(f"env > {script}.env\n")
    programs = {
        "bash": 'exec /bin/sh "$@"',
        "nvidia-cuda-mps-control": 'echo "$@" >> control.log; [ $# = 0 ] && cat >> control.log; true',
    }
    for name_of_program, text in programs.items():
        (tmp_path / name_of_program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name_of_program).chmod(0o755)
    script = lines_of(proposal, "Slurm, one job")
    subprocess.run(
        ["/bin/sh", "-c", script], cwd=tmp_path, check=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    found = [(tmp_path / f"{script}.env").read_text() for script in ("first.sh", "second.sh")]
    if name == "time_slicing":
        assert not any("CUDA_MPS" in text for text in found)
        return
    assert (tmp_path / "control.log").read_text().split() == ["-d", "quit"]
    limits = memory_limits_mib(proposal, SETTINGS)
    percentage = 50 if name == "mps_share" else 100
    for text, limit in zip(found, limits, strict=True):
        expected = ",".join(f"{gpu}={limit}M" for gpu in range(proposal.one.gpus))
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={expected}\n" in text
        assert f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}\n" in text
        assert text.count("_DIRECTORY=") == 2


def test_what_is_written_of_each_mode() -> None:
    assert lines_of(PROPOSALS["time_slicing"], "Slurm, two jobs").splitlines() == [
        "sbatch --gres=shard:1 first.sh",
        "sbatch --gres=shard:1 second.sh",
    ]
    assert "sbatch --gres=mps:50 first.sh" in lines_of(PROPOSALS["mps_share"], "Slurm, two jobs")
    assert "nvidia-cuda-mps-control -d -S" in lines_of(PROPOSALS["mps_share"], "Fixed SMs")
    assert "nvidia-smi mig -i 0 -cgi 3g.40gb,3g.40gb -C" in lines_of(
        PROPOSALS["mig"], "MIG, the site"
    )
    assert "nvidia.com/mig-3g.40gb: 1" in lines_of(PROPOSALS["mig"], "Kubernetes")
    claim = yaml.safe_load(lines_of(PROPOSALS["mps_share"], "Kubernetes"))
    assert claim["sharing"]["mpsConfig"]["defaultActiveThreadPercentage"] == 50
    titles = [step.title for step in setup_steps(PROPOSALS["mps tried by two"], SETTINGS)]
    assert len(titles) == 1  # shards do not give two jobs the same four GPUs
    assert any(
        "One user has to run both" in text for text in cautions(PROPOSALS["mps tried by two"])
    )
    assert setup_steps(replace(PROPOSALS["mps"], verdict="no"), SETTINGS) == []
    assert probation(replace(PROPOSALS["mps"], verdict="no"), SETTINGS) == []


@pytest.mark.parametrize("seed", range(5))
def test_memory_limits_hold_both_and_leave_room(seed: int) -> None:
    chance = random.Random(seed)
    groups = some_groups(seed, 12)
    for _ in range(40):
        one, other = chance.sample(groups, 2)
        found = one_pair(one, other)
        if not found.options or found.options[0].mode == "mig":
            continue
        limits = memory_limits_mib(found, SETTINGS)
        for limit, side in zip(limits, (one, other), strict=True):
            assert limit + 1 > (side.mix.highest.hbm_bytes or 0.0) / MI
        assert sum(limits) + CONTEXT_BYTES / MI <= 0.9 * one.device.hbm_mib
        lines = [step.lines for step in setup_steps(found, SETTINGS)]
        shares = {
            float(share) for text in lines for share in re.findall(r"fraction\(([0-9.]+)\)", text)
        }
        assert all(share * 80 * GIB <= max(limits) * MI for share in shares)


@pytest.mark.parametrize("name", PROPOSALS)
def test_no_text_of_users_is_in_a_line_to_type(name: str) -> None:
    proposal = PROPOSALS[name]
    hostile = [
        replace(side, user=HOSTILE, name=HOSTILE, array=HOSTILE)
        for side in (proposal.one, proposal.other)
    ]
    renamed = replace(proposal, one=hostile[0], other=hostile[1])
    kept = [step.lines for step in setup_steps(renamed, SETTINGS)]
    of_one_user = replace(
        proposal, one=replace(proposal.one, user="x"), other=replace(proposal.other, user="x")
    )
    assert kept == [step.lines for step in setup_steps(of_one_user, SETTINGS)]
    for sentence in (*probation(renamed, SETTINGS), *cautions(renamed)):
        assert "\n" not in sentence
        assert all(
            "`" not in word or word.count("`") == 2 for word in re.findall(r"`[^`]*`", sentence)
        )


def test_slices_are_created_largest_first() -> None:
    parts = MIG_PROFILES["A100 SXM 80GB"]
    proposal = PROPOSALS["mig"]
    option = replace(proposal.options[0], slices=(parts[2], parts[4]))
    lines = lines_of(replace(proposal, options=(option,)), "MIG, the site")
    assert "-cgi 4g.40gb,2g.20gb -C" in lines
