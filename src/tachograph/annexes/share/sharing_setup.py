"""What to type so that two job groups share a GPU, and how to try and undo it.

Sources: gres.conf(5) and sbatch(1) of Slurm; NVIDIA's guides of MPS, MIG, the Kubernetes device
plugin and the DRA driver. No text that a user chose is in a line to type: programs are `first.sh`
and `second.sh`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tachograph.annexes.share.advice import times
from tachograph.annexes.share.proposals import CONTEXT_BYTES, SharingMode, SharingProposal
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.units import MI, printable, text


@dataclass(frozen=True, slots=True)
class SetupStep:
    """Lines to type, or to write into a file; the title says who does it, and where.

    one_gpu: only for jobs on one GPU: Slurm and Kubernetes place parts of GPUs one by one, and do
    not give two jobs the same several GPUs.
    """

    title: str
    lines: str
    one_gpu: bool = True


_BOTH_SH = "Slurm, one job of one user runs both: write both.sh, then `sbatch both.sh`"
_TURNS_IN_ONE_JOB = """\
#!/bin/bash
#SBATCH --nodes=1 --gres=gpu:{gpus}
bash first.sh &
bash second.sh &
wait"""
_MPS_IN_ONE_JOB = """\
#!/bin/bash
#SBATCH --nodes=1 --gres=gpu:{gpus}
export CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}
nvidia-cuda-mps-control -d
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits_one} bash first.sh &
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits_other} bash second.sh &
wait
echo quit | nvidia-cuda-mps-control"""
_SHARDS = SetupStep(
    "Slurm, two jobs",
    """\
sbatch --gres=shard:1 first.sh
sbatch --gres=shard:1 second.sh""",
)
_SHARDS_OF_SITE = SetupStep(
    "Slurm, the site, once",
    """\
GresTypes=gpu,shard                     # slurm.conf; of the node: Gres=gpu:1,shard:2
Name=shard Count=2 File=/dev/nvidia0    # gres.conf, for each GPU""",
)
_DAEMON_OF_SITE = SetupStep(
    "On the node, as root, before the first job; `quit` undoes it",
    """\
nvidia-cuda-mps-control -d
echo quit | nvidia-cuda-mps-control""",
)
_LIMITS_OF_MPS = SetupStep(
    "Limits of memory, in first.sh and in second.sh",
    """\
export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits_one}
export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits_other}""",
)
_CLAIM_OF_MPS = SetupStep(
    "Kubernetes, parameters of one claim for both (NVIDIA's DRA driver with MPSSupport)",
    """\
apiVersion: resource.nvidia.com/v1beta1
kind: GpuConfig
sharing:
  strategy: MPS
  mpsConfig:
    defaultActiveThreadPercentage: {percentage}
    defaultPinnedDeviceMemoryLimit: {limit_mib}Mi""",
)
_STEPS: Mapping[SharingMode, tuple[SetupStep, ...]] = MappingProxyType(
    {
        "time_slicing": (
            SetupStep(_BOTH_SH, _TURNS_IN_ONE_JOB, one_gpu=False),
            _SHARDS,
            _SHARDS_OF_SITE,
            SetupStep(
                "Kubernetes, configuration of NVIDIA's device plugin",
                """\
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 2""",
            ),
            SetupStep("Kubernetes, each container", "resources: {{limits: {{nvidia.com/gpu: 1}}}}"),
            SetupStep(
                "Limits of memory, which only programs keep: JAX in the scripts, PyTorch in Python",
                """\
export XLA_PYTHON_CLIENT_MEM_FRACTION={share_one}              # in first.sh
export XLA_PYTHON_CLIENT_MEM_FRACTION={share_other}              # in second.sh
torch.cuda.set_per_process_memory_fraction({share_one})    # in the program of first.sh
torch.cuda.set_per_process_memory_fraction({share_other})    # in the program of second.sh""",
                one_gpu=False,
            ),
        ),
        "mps": (
            SetupStep(_BOTH_SH, _MPS_IN_ONE_JOB, one_gpu=False),
            _SHARDS,
            _LIMITS_OF_MPS,
            _SHARDS_OF_SITE,
            _DAEMON_OF_SITE,
            _CLAIM_OF_MPS,
        ),
        "mps_share": (
            SetupStep(_BOTH_SH, _MPS_IN_ONE_JOB, one_gpu=False),
            SetupStep(
                "Slurm, two jobs; it sets CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                """\
sbatch --gres=mps:{percentage} first.sh
sbatch --gres=mps:{percentage} second.sh""",
            ),
            _LIMITS_OF_MPS,
            SetupStep(
                "Slurm, the site, once",
                """\
GresTypes=gpu,mps                       # slurm.conf; of the node: Gres=gpu:1,mps:100
Name=mps Count=100 File=/dev/nvidia0    # gres.conf, for each GPU""",
            ),
            _DAEMON_OF_SITE,
            SetupStep(
                "Fixed SMs in place of a percentage, with CUDA 13.1 or later",
                """\
nvidia-cuda-mps-control -d -S
echo lspart | nvidia-cuda-mps-control                              # free chunks of SMs
echo "sm_partition add GPU_UUID CHUNKS" | nvidia-cuda-mps-control  # for each job; prints an ID
export CUDA_MPS_SM_PARTITION=ID                                    # in first.sh, in second.sh""",
            ),
            _CLAIM_OF_MPS,
        ),
        "mig": (
            SetupStep(
                "MIG, the site, as root, on an empty GPU",
                """\
nvidia-smi -i 0 -mig 1
nvidia-smi mig -i 0 -cgi {largest_first} -C
nvidia-smi -L""",
            ),
            SetupStep(
                "Slurm, two jobs; TYPE: the name of the slice in `sinfo -o %G`",
                """\
sbatch --gres=gpu:TYPE:1 first.sh     # {slice_one}
sbatch --gres=gpu:TYPE:1 second.sh    # {slice_other}""",
            ),
            SetupStep(
                "Kubernetes, each container (device plugin with migStrategy: mixed)",
                """\
resources: {{limits: {{nvidia.com/mig-{slice_one}: 1}}}}
resources: {{limits: {{nvidia.com/mig-{slice_other}: 1}}}}""",
            ),
            SetupStep(
                "MIG, undo, when both have ended",
                """\
nvidia-smi mig -i 0 -dci
nvidia-smi mig -i 0 -dgi
nvidia-smi -i 0 -mig 0""",
            ),
        ),
    }
)


def setup_steps(proposal: SharingProposal, settings: InterferenceOptions) -> list[SetupStep]:
    """Return what to type for the best mode of a pair; nothing where sharing is not proposed."""
    option, gpus = proposal.best, proposal.one.gpus
    if option is None or proposal.verdict == "no":
        return []
    limits_mib = memory_limits_mib(proposal, settings)
    hbm_mib = min(proposal.one.hbm_mib, proposal.other.hbm_mib)
    values: dict[str, object] = {
        "gpus": gpus,
        "percentage": round(100 * option.part),
        "limit_mib": max(limits_mib),
    }
    for name, limit in zip(("one", "other"), limits_mib, strict=True):
        values[f"limits_{name}"] = ",".join(f"{gpu}={limit}M" for gpu in range(gpus))
        values[f"share_{name}"] = f"{int(100 * limit / hbm_mib) / 100:.2f}"
    if option.slices is not None:
        # Larger slices have fewer places on the GPU.
        slices = sorted(option.slices, key=lambda part: (part.sms, part.memory), reverse=True)
        values["largest_first"] = ",".join(part.name for part in slices)
        values["slice_one"], values["slice_other"] = (part.name for part in option.slices)
    return [
        replace(step, lines=step.lines.format(**values))
        for step in _STEPS[option.mode]
        if gpus == 1 or not step.one_gpu
    ]


def memory_limits_mib(proposal: SharingProposal, settings: InterferenceOptions) -> tuple[int, int]:
    """Return the memory that each may use: its peak, and half of what remains beside both."""
    peaks = [(group.mix.highest.hbm_bytes or 0.0) / MI for group in (proposal.one, proposal.other)]
    hbm_mib = min(proposal.one.hbm_mib, proposal.other.hbm_mib)
    room = settings.safe_hbm * hbm_mib - CONTEXT_BYTES / MI
    spare = (room - sum(peaks)) / 2
    return int(peaks[0] + spare), int(peaks[1] + spare)


def probation(proposal: SharingProposal, settings: InterferenceOptions) -> list[str]:
    """Return how to try it, what to watch, and when to undo it; nothing without a proposal."""
    if proposal.verdict == "no":
        return []
    groups = (proposal.one,) if proposal.one is proposal.other else (proposal.one, proposal.other)
    alone, limits = [], []
    for group in groups:
        name = printable(group.label)
        alone.append(f"{name} {text(3600 * group.run_h, 's')}")
        limits.append(f"{name} {text(3600 * group.run_h * settings.max_slowdown, 's')}")
    watch = (
        f"Watch the run time (alone, on average: {', '.join(alone)}), steps per second, GPU memory "
        "(`tachograph watch` on the node), and errors; then `tachograph job ID` of both."
    )
    undo = (
        f"Undo if a run takes more than {times(settings.max_slowdown)} as long "
        f"({', '.join(limits)}), if memory passes {text(settings.safe_hbm, 'fraction')} "
        "of the GPU's, or if one fails that did not fail alone: submit each with "
        f"`--gres=gpu:{proposal.one.gpus}` again."
    )
    return ["Run both together once, with checkpoints and input of the usual size.", watch, undo]


def cautions(proposal: SharingProposal) -> list[str]:
    """Return what to mind in the best mode, a sentence each."""
    option = proposal.best
    if option is None or proposal.verdict == "no":
        return []
    sentences = []
    if option.mode in ("mps", "mps_share"):
        sentences.append(
            "MPS: a GPU fault of one process also ends the others. Short kernels may wait for long "
            "ones of the other job, longer than under time-slicing."
        )
        if not proposal.same_user:
            sentences.append(
                "MPS serves one user at a time, unless its server was started for several."
            )
    if option.mode == "mps_share":
        sentences.append(
            "A percentage limits how many SMs a process uses, not which: both may use the same."
        )
    if option.mode == "mig":
        sentences.append("A process can use one slice only. Its L2 cache is smaller, too.")
    if proposal.one.gpus > 1 and not proposal.same_user:
        sentences.append(
            "Shards and replicas are counted GPU by GPU: nothing gives two users the same "
            f"{proposal.one.gpus} GPUs. One user has to run both, in one job."
        )
    return sentences
