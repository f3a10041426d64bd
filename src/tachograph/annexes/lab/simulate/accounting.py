"""Simulated files of a site: Slurm accounting, GPU map, devices, configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from ClusterShell.NodeSet import NodeSet

from tachograph.annexes.lab.simulate.plan import SimulatedNode, SimulationPlan
from tachograph.annexes.lab.simulate.truth import display_id, raw_id, state_of, user_name
from tachograph.annexes.lab.simulate.workload import (
    LARGE_MEMORY_MIB,
    SimulatedRequest,
    SimulatedRun,
)
from tachograph.catalog.units import slurm_duration, zone

# Of a delimiter that was random once: no name of a job holds it.
BETWEEN = "0b8f3c52-6a0e-4a3f-9f2d-8f6c2b1d7e90"
CPU_NODE = "cpu0001"
_DEVICES_MAPPING = """\
table = "devices"

[node]
column = "node"

[gpu]
column = "gpu"

[columns]
uuid = { to = "uuid" }
pci = { to = "pci" }
model = { to = "model" }
hbm_mib = { to = "hbm_mib" }
"""
CPUS_PER_GPU, GIB_PER_GPU = 32, 60
_BATCH_S, _BATCH_KIB = 2, 8_000  # CPU time and memory of a batch script


def write_accounting(plan: SimulationPlan, file: Path, runs: Sequence[SimulatedRun]) -> None:
    """Write `sacct --parsable2 --duplicates` as of the plan's end: local times, steps included."""
    with file.open("w", encoding="utf-8") as out:
        for number, record in enumerate(_records(plan, runs)):
            if not number:
                out.write(BETWEEN.join(record) + "\n")
            out.write(BETWEEN.join(record.values()) + "\n")


def write_gpu_map(plan: SimulationPlan, file: Path, runs: Sequence[SimulatedRun]) -> None:
    """Write the GPU map of jobs on shared nodes, as by prolog and epilog, with planned gaps."""
    names = [node.name for node in plan.nodes()]
    with file.open("w", encoding="utf-8") as out:
        out.write(f"job_id,node,gpu,start,end{',shards,mps' if plan.shared_gpus else ''}\n")
        for run in runs:
            if not run.mapped or run.start_s is None or run.end_s is None:
                continue
            end = "" if run.end_s > plan.seconds else _iso(plan, run.end_s)
            times = f"{_iso(plan, run.start_s)},{end}"
            shares = _shares_of_gpu(run.request) if plan.shared_gpus else ""
            for node, gpus in run.places:
                for gpu in gpus:
                    out.write(f"{raw_id(run.request)},{names[node]},{gpu},{times}{shares}\n")


def _shares_of_gpu(request: SimulatedRequest) -> str:
    """Return the columns `shards` and `mps` of a job: 4/8 are half of the GPU, 0 is all of it."""
    if request.share is None:
        return ",0,0"
    part = f"{request.share.part}/{request.share.whole}"
    return f",{part},0" if request.share.resource == "shard" else f",0,{part}"


def write_devices(plan: SimulationPlan, file: Path) -> None:
    """Write node, index, UUID, PCI address, model and memory of every GPU."""
    with file.open("w", encoding="utf-8") as out:
        out.write("node,gpu,uuid,pci,model,hbm_mib\n")
        for node in plan.nodes():
            group = plan.groups[node.group]
            parts = np.random.default_rng([plan.seed, 9, node.index]).integers(
                0, 1 << 32, (group.gpus, 4)
            )
            for gpu in range(group.gpus):
                text = "".join(f"{int(word):08x}" for word in parts[gpu])
                uuid = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
                pci = f"00000000:{0x03 + 0x40 * (gpu % 4) + gpu // 4:02X}:00.0"
                out.write(
                    f"{node.name},{gpu},{uuid},{pci},{group.driver.name},{group.driver.total_mib}\n"
                )


def write_devices_mapping(file: Path) -> None:
    """Write the mapping of the list of GPUs for `tachograph ingest table --mapping`."""
    file.write_text(_DEVICES_MAPPING, encoding="utf-8")


def write_configuration(plan: SimulationPlan, file: Path) -> None:
    """Write the site's configuration: time zone, partitions, models of the nodes."""
    models: list[str] = []
    gpus: list[str] = []
    for number, group in enumerate(plan.groups):
        names = fold([node.name for node in plan.nodes() if node.group == number])
        models.append(f'"{names}" = "{group.driver.name}"')
        gpus.append(f'"{names}" = {group.gpus}')
    lines = [
        f'[site]\ntime_zone = "{plan.time_zone}"\ncluster = "{plan.cluster}"\n',
        '[slurm]\nshared = ["shared"]\nexclusive = ["gpu"]\n',
        *("[nodes.models]", *models, "", "[nodes.gpus]", *gpus),
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_partitions(plan: SimulationPlan, file: Path) -> None:
    """Write partitions and nodes as `scontrol show partition` and `show node` print them."""
    lines: list[str] = []
    for name, whole in (("gpu", "EXCLUSIVE"), ("shared", "NO")):
        nodes = fold([node.name for node in plan.nodes() if node.shared == (name == "shared")])
        lines.append(f"PartitionName={name} State=UP OverSubscribe={whole} Nodes={nodes}")
    for node in plan.nodes():
        gpus = plan.groups[node.group].gpus
        cpus, memory_mib = CPUS_PER_GPU * gpus, GIB_PER_GPU * gpus * 1024
        lines.append(f"NodeName={node.name} CPUTot={cpus} RealMemory={memory_mib} Gres=gpu:{gpus}")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fold(names: Sequence[str]) -> str:
    """Return a node list as Slurm writes it.

    >>> fold(["nid000003", "nid000001", "nid000002", "nid000007"])
    'nid[000001-000003,000007]'
    """
    return str(NodeSet.fromlist(names))


def _records(plan: SimulationPlan, runs: Sequence[SimulatedRun]) -> Iterator[dict[str, str]]:
    nodes = plan.nodes()
    for run in runs:
        if run.submit_s >= plan.seconds:
            continue
        record = _record(plan, run, nodes)
        if run.request.het:
            yield from _het_leader(record, run)
        if run.start_s is None:
            yield record
        else:
            yield from _with_steps(record, _host_use(plan, run, record))


def _record(
    plan: SimulationPlan, run: SimulatedRun, nodes: Sequence[SimulatedNode]
) -> dict[str, str]:
    """One accounting row of a job, {field: text}."""
    request, state = run.request, state_of(plan, run)
    start_s, end_s = run.start_s, run.end_s
    count = len(run.places) or max(1, request.nodes)
    running = state == "RUNNING"
    until = plan.seconds if running or end_s is None else end_s
    partition = partition_of(request)
    if start_s is None:
        start_text = "Unknown" if state == "PENDING" else "None"
        elapsed_s = 0
        node_list = "None assigned"
        allocated_tres = ""
    else:
        start_text = _local(plan, start_s)
        elapsed_s = until - start_s
        node_list = fold([nodes[node].name for node, _ in run.places]) if run.places else CPU_NODE
        allocated_tres = _tres(plan, run, count, typed=True)
    return {
        "JobID": display_id(request),
        "JobIDRaw": str(raw_id(request)),
        "Cluster": plan.cluster,
        "Partition": partition,
        "QOS": request.qos,
        "Account": request.account,
        "User": user_name(request),
        "Submit": _local(plan, run.submit_s),
        "Eligible": _local(plan, run.submit_s),
        "Start": start_text,
        "End": "Unknown" if running or state == "PENDING" else _local(plan, end_s or 0),
        "Elapsed": slurm_duration(elapsed_s),
        "State": f"CANCELLED by {request.uid}" if state == "CANCELLED" else state,
        "ExitCode": "0:0" if running else run.exit_code,
        "NNodes": str(count),
        "NodeList": node_list,
        "AllocTRES": allocated_tres,
        "ReqTRES": _tres(plan, run, count, typed=False),
        "Constraints": constraint(plan, run),
        "Timelimit": slurm_duration(request.limit_min * 60),
        "ReqMem": f"{host_share(request) * GIB_PER_GPU}G",
        "TotalCPU": slurm_duration(0),  # with steps: `_with_steps`
        "MaxRSS": "",
        "TRESUsageInTot": "",
        "NTasks": "",
        "JobName": request.name,
        "SubmitLine": _submit_line(plan, run, partition),
    }


def partition_of(request: SimulatedRequest) -> str:
    """Return the partition of a request."""
    if not request.gpus:
        return "cpu"
    return "gpu" if request.nodes else "shared"


def constraint(plan: SimulationPlan, run: SimulatedRun) -> str:
    """Return requested features: an unusual model, and the memory tier if there are several."""
    if not run.request.gpus:
        return ""
    group = plan.groups[run.request.group]
    features = ["gpu"] if group.driver.gres == "a100" else ["gpu", group.driver.gres]
    if group.driver.gres == "a100" or group.device.hbm_mib >= LARGE_MEMORY_MIB:
        features.append(f"hbm{group.device.hbm_mib / 1024:.0f}g")
    return "&".join(features)


def _tres(plan: SimulationPlan, run: SimulatedRun, nodes: int, *, typed: bool) -> str:
    gpus = run.request.gpus
    share = host_share(run.request)
    cpus, memory = share * CPUS_PER_GPU, share * GIB_PER_GPU
    parts = [f"billing={cpus}", f"cpu={cpus}"]
    if run.request.share:
        parts.append(f"gres/{run.request.share.resource}={run.request.share.part}")
    elif gpus:
        kind = plan.groups[run.request.group].driver.gres
        parts += [f"gres/gpu:{kind}={gpus}"] if typed else []
        parts.append(f"gres/gpu={gpus}")
    return ",".join([*parts, f"mem={memory}G", f"node={nodes}"])


def host_share(request: SimulatedRequest) -> int:
    """Return the number of GPUs whose share of CPUs and host memory it requests."""
    return request.host_gpus or max(1, request.gpus)


def _host_use(plan: SimulationPlan, run: SimulatedRun, record: dict[str, str]) -> tuple[int, int]:
    """CPU time (s) of a run, memory of its largest task (KiB); zero while it is running."""
    if record["State"] == "RUNNING" or run.start_s is None or run.end_s is None:
        return 0, 0
    busy, held = np.random.default_rng([plan.seed, 10, raw_id(run.request)]).uniform(0.02, 0.6, 2)
    if run.request.of_group is not None:  # as much as its other runs, but for some percent
        usual = np.random.default_rng([plan.seed, 13, run.request.of_group]).uniform(0.02, 0.6, 2)
        busy, held = usual * (0.9 + 0.2 * np.array([busy, held]))
    cpu_s = host_share(run.request) * CPUS_PER_GPU * (run.end_s - run.start_s)
    return int(busy * cpu_s), int(held * GIB_PER_GPU * 2**20)


def _submit_line(plan: SimulationPlan, run: SimulatedRun, partition: str) -> str:
    request = run.request
    line = [
        "sbatch",
        f"-J '{request.name}'",
        f"-p {partition}",
        f"-A {request.account}",
        f"-q {request.qos}",
    ]
    line += [f"-t {request.limit_min}", f"-N {max(1, request.nodes)}"]
    if request.gpus:
        line += [f'-C "{constraint(plan, run)}"']
        per_node = request.gpus // max(1, request.nodes)
        whole = f"--gpus-per-node={per_node}"
        share = request.share
        line.append(f"--gres={share.resource}:{share.part}" if share else whole)
        line += ["--exclusive"] if request.nodes and request.serial % 7 == 0 else []
    if request.array and request.array[1] >= 0:
        line.append("--array=0-7")
    if request.het:  # one line requests all components
        line.insert(1, f"-J '{request.name}' -p cpu -A {request.account} -n 1 :")
    # The delimiter in the last field.
    script = "job.sh" if request.serial % 11 else "--wrap 'srun ./run | tee out.log'"
    return " ".join([*line, script])


def _het_leader(record: dict[str, str], run: SimulatedRun) -> list[dict[str, str]]:
    """The part without GPUs of a heterogeneous job."""
    waiting = run.start_s is None
    first = record | {
        "JobID": f"{run.request.job_id}+0",
        "JobIDRaw": str(run.request.job_id),
        "Partition": "cpu",
        "NNodes": "1",
        "NodeList": "None assigned" if waiting else CPU_NODE,
        "AllocTRES": "" if waiting else "billing=1,cpu=1,mem=1G,node=1",
        "ReqTRES": "billing=1,cpu=1,mem=1G,node=1",
        "ReqMem": "1G",
        "Constraints": "",
    }
    return [first] if waiting else _with_steps(first, (0, 0))


def _with_steps(record: dict[str, str], use: tuple[int, int]) -> list[dict[str, str]]:
    """Rows of a job with batch, extern and one srun step, which used `use` (CPU s, KiB)."""
    batch_state = {"TIMEOUT": "CANCELLED", "NODE_FAIL": "CANCELLED"}.get(
        record["State"], record["State"].split()[0]
    )
    blank = (
        "Partition",
        "QOS",
        "User",
        "ReqTRES",
        "Constraints",
        "Timelimit",
        "ReqMem",
        "SubmitLine",
    )
    running = record["State"] == "RUNNING"
    small = (0, 0) if running else (_BATCH_S, _BATCH_KIB)
    steps = (
        ("batch", "batch", batch_state, small),
        ("extern", "extern", "RUNNING" if running else "COMPLETED", (0, 0)),
        ("0", "app", batch_state, use),
    )
    rows = []
    for step, name, state, (cpu_s, kib) in steps:
        # Killed processes do not hand on their CPU time.
        counted_s = 0 if state == "CANCELLED" else cpu_s
        row = record | dict.fromkeys(blank, "") | {"JobName": name, "State": state}
        row |= {"TotalCPU": slurm_duration(counted_s), "MaxRSS": f"{kib}K" if kib else ""}
        row["TRESUsageInTot"] = f"cpu={slurm_duration(cpu_s)},energy=0,mem={kib}K" if kib else ""
        row["NTasks"] = "1" if step == "batch" else record["NNodes"]
        row["JobID"], row["JobIDRaw"] = f"{record['JobID']}.{step}", f"{record['JobIDRaw']}.{step}"
        row["Submit"] = row["Eligible"] = record["Start"]
        row["SubmitLine"] = "srun ./app" if step == "0" else ""
        rows.append(row)
    handed_on_s = 0 if batch_state == "CANCELLED" else small[0] + use[0]
    return [record | {"TotalCPU": slurm_duration(handed_on_s)}, *rows]


def _local(plan: SimulationPlan, seconds: int) -> str:
    return (
        f"{datetime.fromtimestamp(plan.start_s + seconds, zone(plan.time_zone)):%Y-%m-%dT%H:%M:%S}"
    )


def _iso(plan: SimulationPlan, seconds: int) -> str:
    return f"{datetime.fromtimestamp(plan.start_s + seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
