"""Identities of a real Slurm: its tokens, and the coordinators of its accounts."""

from __future__ import annotations

from pathlib import Path

import pytest
from marked_lake import connect

from servers.slurm import SlurmCluster
from tachograph.api.managers import read_coordinators
from tachograph.lake.delta import Lake
from tachograph.sources.slurm.commands import SiteProgram

pytestmark = pytest.mark.slow
ME = "/api/v1/me"


def test_a_token_of_slurm_names_its_user(slurm: SlurmCluster, marked: Lake) -> None:
    client = connect(marked, slurm_jwt_key=str(slurm.plan.token_key), admin_users=("daemon",))
    token = slurm.token("daemon")
    for headers in (
        {"x-slurm-user-token": token, "x-slurm-user-name": "daemon"},
        {"authorization": f"Bearer {token}"},
    ):
        me = client.get(ME, headers=headers).json()
        assert (me["name"], me["role"], me["via"]) == ("daemon", "admin", "slurm")
    assert client.get(ME, headers={"x-slurm-user-token": token[:-2]}).status_code == 401


def test_a_token_of_another_cluster_names_no_one(
    slurm: SlurmCluster, marked: Lake, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    client = connect(marked, slurm_jwt_key=str(key))
    assert client.get(ME, headers={"x-slurm-user-token": slurm.token("daemon")}).status_code == 401


def test_coordinators_are_those_of_the_accounting(slurm: SlurmCluster) -> None:
    account, user = (
        slurm.command("sacctmgr", "-nP", "show", "assoc", "format=Account,User")
        .split()[-1]
        .split("|")
    )
    slurm.command(
        "sacctmgr", "-i", "-Q", "add", "coordinator", f"account={account}", f"names={user}"
    )
    sacctmgr = SiteProgram(("sacctmgr",), environment=slurm.environment)
    assert read_coordinators(sacctmgr)[user] == {account}
    slurm.command(
        "sacctmgr", "-i", "-Q", "delete", "coordinator", f"account={account}", f"names={user}"
    )
    assert user not in read_coordinators(sacctmgr)
