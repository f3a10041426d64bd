"""What a cluster consists of, and the files that configure it."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path

from servers.process import listens

# Users of any Debian, none has to be made.
ACCOUNTS = {"daemon": "physics", "games": "biology", "mail": "biology"}
CLUSTER = "testing"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the daemons listen. `nodes`: one port per emulated node."""

    controller: int
    database: int
    rest: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes, their GPUs, and what else slurm.conf holds."""

    folder: Path
    ports: Ports
    gpu_nodes: tuple[str, ...]
    cpu_nodes: tuple[str, ...]
    gpus: int
    settings: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        return (*self.gpu_nodes, *self.cpu_nodes)

    @property
    def hooks(self) -> Path:
        """Prologs, epilogs, what they write: `held/NODE/GPU`, a job id each; `gpu-map/NODE.log`,
        a line per event.
        """
        return self.folder / "hooks"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge" / "socket"

    @property
    def database_socket(self) -> Path:
        return self.folder / "mysql" / "socket"

    @property
    def token_key(self) -> Path:
        return self.folder / "etc" / "jwt_hs256.key"

    def log(self, daemon: str) -> Path:
        """Where a daemon prints."""
        return self.folder / "log" / f"{daemon}.log"


def free_ports(nodes: int) -> Ports:
    """Return ports that are free and outside the range that outgoing connections take theirs
    from.
    """
    while True:
        first = random.randrange(10_000, 32_000)
        ports = range(first, first + nodes + 3)
        if not any(listens(port) for port in ports):
            return Ports(first, first + 1, first + 2, tuple(ports[3:]))


def accounting_conf(plan: Plan) -> str:
    """Return slurmdbd.conf. StorageHost localhost is the default socket; ours is named in the
    environment.
    """
    return f"""\
AuthType=auth/munge
AuthInfo=socket={plan.munge_socket}
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={plan.token_key}
DbdHost=localhost
DbdPort={plan.ports.database}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
StorageHost=localhost
LogFile={plan.log("slurmdbd")}
PidFile={plan.folder}/slurmdbd.pid
DebugLevel=info
"""


def slurm_conf(plan: Plan) -> str:
    """Return slurm.conf.

    cred_expire is also how long a requeued job waits before it runs again.
    """
    host = socket.gethostname().partition(".")[0]
    parts = [
        f"""\
ClusterName={CLUSTER}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={plan.munge_socket},cred_expire=15
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={plan.token_key}
SlurmctldPort={plan.ports.controller}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={plan.folder}/state
SlurmdSpoolDir={plan.folder}/spool/%n
SlurmctldPidFile={plan.folder}/slurmctld.pid
SlurmdPidFile={plan.folder}/slurmd-%n.pid
SlurmctldLogFile={plan.log("slurmctld")}
SlurmdLogFile={plan.folder}/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,batch_sched_delay=0,sched_interval=2,defer_batch
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
PriorityType=priority/multifactor
MinJobAge=86400
OverTimeLimit=0
KillWait=2
InactiveLimit=0
SlurmctldTimeout=120
SlurmdTimeout=120
UnkillableStepTimeout=120
MessageTimeout=60
JobRequeue=1
PrologFlags=Alloc
Prolog={plan.hooks}/prolog.d/*
Epilog={plan.hooks}/epilog.d/*
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={plan.ports.database}
AccountingStoragePass={plan.munge_socket}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment,job_env,job_script
"""
    ]
    for name, port in zip(plan.nodes, plan.ports.nodes, strict=True):
        gres = f" Gres=gpu:{plan.gpus}" if name in plan.gpu_nodes else ""
        parts.append(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} Sockets=2 "
            "CoresPerSocket=32 "
            f"ThreadsPerCore=1 RealMemory=512000 State=UNKNOWN{gres}\n"
        )
    parts.append(
        f"PartitionName=gpu Nodes={','.join(plan.gpu_nodes)} Default=YES MaxTime=1-0 "
        "DefMemPerCPU=1000 State=UP\n"
    )
    if plan.cpu_nodes:
        parts.append(
            f"PartitionName=cpu Nodes={','.join(plan.cpu_nodes)} MaxTime=1-0 DefMemPerCPU=1000 "
            "State=UP\n"
        )
    return "".join(parts) + plan.settings


def gres_conf(plan: Plan) -> str:
    """Return gres.conf. File must name character devices, or jobs do not get their GPUs; the
    number is the index.
    """
    devices = f"{plan.folder}/dev/nvidia[0-{plan.gpus - 1}]"
    return f"NodeName={','.join(plan.gpu_nodes)} Name=gpu File={devices}\n"
