"""Start the daemons in order, stop them in reverse, leave nothing behind."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from servers.process import listens, program, running
from servers.slurm import leftovers
from servers.slurm.cluster import SlurmCluster, wait_for
from servers.slurm.hooks import write_hooks
from servers.slurm.plan import (
    ACCOUNTS,
    CLUSTER,
    Plan,
    accounting_conf,
    free_ports,
    gres_conf,
    slurm_conf,
)

_PACKAGES = {
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "mariadb": "mariadb-client",
    "slurmdbd": "slurmdbd",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}
_STARTING_S = 240.0  # a loaded machine takes many times what an idle one does


@contextmanager
def slurm_cluster(
    folder: Path,
    *,
    gpu_nodes: int = 4,
    cpu_nodes: int = 1,
    gpus: int = 4,
    rest: bool = False,
    settings: str = "",
) -> Iterator[SlurmCluster]:
    """A running cluster for the time of the block: nodes gpu01.. with `gpus` GPUs each, cpu01..
    without.

    Every user must be able to enter `folder`, and its path must be short (it holds sockets).
    `settings` is added to slurm.conf. Without root or the programs the test is skipped, or fails
    where servers are required.
    """
    _require(rest=rest)
    plan = Plan(
        folder.resolve(),
        free_ports(gpu_nodes + cpu_nodes),
        gpu_nodes=tuple(f"gpu{number:02d}" for number in range(1, gpu_nodes + 1)),
        cpu_nodes=tuple(f"cpu{number:02d}" for number in range(1, cpu_nodes + 1)),
        gpus=gpus,
        settings=settings,
    )
    cluster = SlurmCluster(plan)
    _write_files(plan)
    with ExitStack() as stack:
        stack.enter_context(_guarded(plan))
        _start_munge(stack, plan)
        _start_database(stack, plan)
        _start_accounting(stack, cluster)
        _start_slurm(stack, cluster)
        if rest:
            _start_rest(stack, cluster)
        yield cluster


def _require(*, rest: bool) -> None:
    if os.geteuid() != 0:
        if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
            pytest.fail(
                "servers are required and only root can start a Slurm that runs jobs of "
                "several users"
            )
        pytest.skip("only root can start a Slurm that runs jobs of several users")
    for name, package in _PACKAGES.items():
        program(name, package=package)
    if rest:
        program("slurmrestd", package="slurmrestd slurm-wlm-jwt-plugin")


def _write_files(plan: Plan) -> None:
    plan.folder.mkdir(exist_ok=True)
    plan.folder.chmod(0o755)
    for name in (
        "etc",
        "log",
        "mysql",
        "state",
        "spool",
        "dev",
        "munge",
        "jobs",
        *(f"spool/{n}" for n in plan.nodes),
    ):
        (plan.folder / name).mkdir(parents=True)
    (plan.folder / "jobs").chmod(0o1777)
    for number in range(plan.gpus):
        (plan.folder / "dev" / f"nvidia{number}").symlink_to("/dev/null")
    for name, content in (
        ("munge/key", secrets.token_bytes(1024)),
        ("etc/jwt_hs256.key", secrets.token_bytes(32)),
        ("etc/slurmdbd.conf", accounting_conf(plan).encode()),
    ):
        (plan.folder / name).write_bytes(content)
        (plan.folder / name).chmod(0o600)
    (plan.folder / "etc" / "slurm.conf").write_text(slurm_conf(plan))
    (plan.folder / "etc" / "gres.conf").write_text(gres_conf(plan))
    write_hooks(plan)


@contextmanager
def _guarded(plan: Plan) -> Iterator[None]:
    """A process that ends what works in the folder once this one is gone, also where it was
    killed.
    """
    guard = subprocess.Popen(
        [sys.executable, leftovers.__file__, plan.folder], stdin=subprocess.PIPE
    )
    try:
        yield
    finally:
        guard.communicate()


def _start_munge(stack: ExitStack, plan: Plan) -> None:
    folder = plan.folder / "munge"
    command = [
        program("munged", package="munge"),
        "--foreground",
        "--force",  # the folder may lie under one that others may write to
        "--num-threads=2",
        f"--key-file={folder}/key",
        f"--socket={plan.munge_socket}",
        f"--pid-file={folder}/pid",
        f"--seed-file={folder}/seed",
        f"--log-file={plan.log('munged')}",
    ]
    stack.enter_context(
        running(
            command,
            ready=plan.munge_socket.exists,
            log=plan.log("munged.out"),
            within_s=_STARTING_S,
        )
    )


def _start_database(stack: ExitStack, plan: Plan) -> None:
    data, log = plan.folder / "mysql" / "data", plan.log("mariadb")
    install = [
        program("mariadb-install-db", package="mariadb-server"),
        *("--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db"),
        "--auth-root-authentication-method=socket",
    ]
    with log.open("ab") as stream:
        subprocess.run(install, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, check=True)
    command = [
        program("mariadbd", package="mariadb-server"),
        *("--no-defaults", "--user=root", f"--datadir={data}", f"--socket={plan.database_socket}"),
        *(
            "--skip-networking",
            f"--pid-file={plan.folder}/mysql/pid",
            "--innodb-buffer-pool-size=32M",
        ),
        *(
            "--innodb-lock-wait-timeout=900",
            "--innodb-flush-log-at-trx-commit=2",
            "--performance-schema=OFF",
        ),
    ]
    client = [
        program("mariadb", package="mariadb-client"),
        "--no-defaults",
        f"--socket={plan.database_socket}",
        "-e",
    ]

    def answers() -> bool:
        return subprocess.run([*client, "select 1"], capture_output=True).returncode == 0

    stack.enter_context(running(command, ready=answers, log=log, within_s=_STARTING_S))
    made = "create database slurm_acct_db; create user slurm@localhost identified by 'slurm';"
    subprocess.run([*client, f"{made} grant all on slurm_acct_db.* to slurm@localhost"], check=True)


def _start_accounting(stack: ExitStack, cluster: SlurmCluster) -> None:
    plan = cluster.plan
    port, socket = plan.ports.database, str(plan.database_socket)
    _start_daemon(stack, cluster, ("slurmdbd", "-D"), port=port, MYSQL_UNIX_PORT=socket)
    cluster.command("sacctmgr", "-i", "-Q", "add", "cluster", CLUSTER)
    for account in sorted(set(ACCOUNTS.values())):
        users = ",".join(user for user, of in ACCOUNTS.items() if of == account)
        cluster.command("sacctmgr", "-i", "-Q", "add", "account", account, f"Cluster={CLUSTER}")
        cluster.command("sacctmgr", "-i", "-Q", "add", "user", users, f"Account={account}")


def _start_slurm(stack: ExitStack, cluster: SlurmCluster) -> None:
    plan = cluster.plan
    _start_daemon(stack, cluster, ("slurmctld", "-D"), port=plan.ports.controller)
    for node, port in zip(plan.nodes, plan.ports.nodes, strict=True):
        _start_daemon(stack, cluster, ("slurmd", "-D", "-N", node), port=port)

    def all_idle() -> bool:
        return set(cluster.command("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}

    wait_for(all_idle, "all nodes idle", _STARTING_S)


def _start_daemon(
    stack: ExitStack, cluster: SlurmCluster, words: tuple[str, ...], *, port: int, **more: str
) -> None:
    name, *options = words
    stack.enter_context(
        running(
            [program(name, package=_PACKAGES[name]), *options],
            ready=lambda: listens(port),
            log=cluster.plan.log("-".join((name, *options[2:], "out"))),
            environment={**cluster.environment, **more},
            within_s=_STARTING_S,
        )
    )


def _start_rest(stack: ExitStack, cluster: SlurmCluster) -> None:
    """Start slurmrestd, which refuses to run as root."""
    port = cluster.plan.ports.rest
    server = program("slurmrestd", package="slurmrestd slurm-wlm-jwt-plugin")
    command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", server]
    stack.enter_context(
        running(
            [*command, "-a", "rest_auth/jwt", f"127.0.0.1:{port}"],
            ready=lambda: listens(port),
            log=cluster.plan.log("slurmrestd"),
            environment={**cluster.environment, "SLURM_JWT": "daemon"},
            within_s=_STARTING_S,
        )
    )
