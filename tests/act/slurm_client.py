"""Commands of Slurm with a configuration of their own: the same cluster, the project's
cli_filter.lua beside it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from servers.slurm import SlurmCluster

LUA = Path(__file__).resolve().parents[2] / "contrib" / "slurm"


@dataclass(frozen=True, slots=True)
class SlurmClient:
    """sbatch, srun and salloc of a host where jobs are submitted. `advice`: the folder of the
    users' files.
    """

    cluster: SlurmCluster
    folder: Path

    @property
    def advice(self) -> Path:
        """The folder that cli_filter.lua reads."""
        return self.folder / "advice"

    def run(
        self,
        *words: str,
        user: str = "daemon",
        environment: Mapping[str, str] | None = None,
        given: str = "",
        plain: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user; `plain`: without the filter."""
        base = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.home(user)),
        }
        conf = {} if plain else {"SLURM_CONF": str(self.folder / "slurm.conf")}
        return subprocess.run(
            words,
            input=given,
            env={**base, **self.cluster.environment, **conf, **(environment or {})},
            cwd=self.cluster.jobs,
            user=user,
            group=user,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def home(self, user: str) -> Path:
        """A home folder of a user, made when it is first named."""
        folder = self.folder / "home" / user
        if not folder.exists():
            folder.mkdir(parents=True)
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        return folder

    def file(self, user: str = "daemon") -> Path:
        """The user's file of advice."""
        return self.advice / str(pwd.getpwnam(user).pw_uid)


def with_folder(script: Path, target: Path, folder: Path) -> None:
    """Copy a script of Lua with another folder of advice, as a site edits it."""
    lines = script.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("local FOLDER = ") for line in lines) == 1
    edited = [
        f'local FOLDER = "{folder}"' if line.startswith("local FOLDER = ") else line
        for line in lines
    ]
    target.write_text("\n".join(edited) + "\n", encoding="utf-8")


def slurm_client(
    cluster: SlurmCluster, folder: Path, *, wait_s: float | None = None
) -> SlurmClient:
    """Return a client whose slurm.conf names the filter. Every user must be able to enter `folder`.

    wait_s: so long the filter waits for its file, which on a loaded machine may take longer than
    the limit as shipped.
    """
    client = SlurmClient(cluster, folder)
    (folder / "home").mkdir(parents=True)
    client.advice.mkdir(mode=0o711)
    for name in ("slurm.conf", "gres.conf"):
        shutil.copy(cluster.plan.folder / "etc" / name, folder / name)
    with (folder / "slurm.conf").open("a", encoding="utf-8") as configuration:
        configuration.write("CliFilterPlugins=lua\n")
    with_folder(LUA / "cli_filter.lua", folder / "cli_filter.lua", client.advice)
    if wait_s is not None:
        script = folder / "cli_filter.lua"
        content = script.read_text(encoding="utf-8")
        assert "local WAIT_S = 0.15 " in content
        script.write_text(
            content.replace("local WAIT_S = 0.15 ", f"local WAIT_S = {wait_s} "), encoding="utf-8"
        )
    for path in (folder, folder / "home"):
        path.chmod(0o755)
    return client
