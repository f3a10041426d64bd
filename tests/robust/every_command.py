"""A call of every command on a small site, so that a test walks all of them, and those that are
added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bad_input import SACCT, csv, job, rows, tachograph

from tachograph.cli.registry import COMMANDS

CONFIGURATION = """
[collect]
listen = ""
[[sources]]
source = "dcgm-exporter"
urls = ["http://127.0.0.1:1/metrics"]
"""
KERNELS = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","1","a","n1","axpy","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","","gpu__time_duration.sum","ns","1000"\n'
)


@dataclass(frozen=True, slots=True)
class SmallSite:
    """A folder with inputs, a configuration and a lake of one analyzed job, and room for what
    commands write.
    """

    folder: Path

    @classmethod
    def filled(cls, folder: Path) -> SmallSite:
        """Return the site, with its lake filled."""
        site = cls(folder)
        folder.mkdir(exist_ok=True)
        site.config.write_text(CONFIGURATION, encoding="utf-8")
        (folder / "out").mkdir()
        (folder / "kernels.csv").write_text(KERNELS, encoding="utf-8")
        # A value that is rejected.
        csv(folder, "samples.csv", rows(60), "2026-03-01T10:10:00,n1,0,500,100\n")
        csv(folder, "jobs.txt", job(1), header=SACCT)
        csv(folder, "map.csv", "1,n1,0\n", header="job_id,node,gpu\n")
        for words in (*site.ingests, ("analyze",)):
            done = tachograph(*words, environment=site.environment)
            assert (done.code, done.printed) == (0, ""), done
        return site

    @property
    def config(self) -> Path:
        """The configuration."""
        return self.folder / "tachograph.toml"

    @property
    def lake(self) -> Path:
        """The lake."""
        return self.folder / "lake"

    @property
    def environment(self) -> Mapping[str, str]:
        """What names lake and configuration."""
        return {"TACHOGRAPH_LAKE": str(self.lake), "TACHOGRAPH_CONFIG": str(self.config)}

    @property
    def ingests(self) -> Sequence[Sequence[str]]:
        """The calls that fill the lake."""
        return (
            ("ingest", "ldms", str(self.folder / "samples.csv")),
            ("ingest", "sacct", str(self.folder / "jobs.txt")),
            ("ingest", "allocation-map", str(self.folder / "map.csv")),
        )

    def calls(self) -> Mapping[str, Sequence[str]]:
        """A call of each command, in the order of the registry; those that write a lake come
        with all others.
        """
        out = self.folder / "out"
        calls: dict[str, Sequence[str]] = {
            "demo": ("--folder", str(out / "demo")),
            "help": ("--man",),
            "completion": ("bash",),
            "init": ("--config", str(out / "new.toml")),
            "ingest": ("ldms", str(self.folder / "samples.csv")),
            "analyze": ("--full",),
            "lake compact": (),
            "collect": ("--once",),
            "status": (),
            "lake": (),
            "lake forget": ("--user", "somebody", "--remove"),
            "jobs": (),
            "job": ("1", "--html", str(out / "job.html")),
            "seff": ("1",),
            "watch": ("--simulate", "2", "--once"),
            "record": (
                "--simulate",
                "1",
                "--interval",
                "0.1",
                "-o",
                str(out / "recording"),
                "--",
                "sleep",
                "0.5",
            ),
            "lab scores": ("1",),
            "lab classify": (),
            "lab tune": ("--propose",),
            "lab rules": ("run",),
            "study": ("--figure", "1", "-o", str(out / "figures")),
            "waste": (),
            "advise": ("--backtest",),
            "serve": ("token", "list"),
            "mcp": (),
            "export": ("csv", "--to", str(out / "csv")),
            "act comment": (),
            "act digest": (),
            "act": ("--once",),
            "act policy": ("status",),
            "share kernels": (str(self.folder / "kernels.csv"),),
            "share colocate": (),
            "lab simulate": (
                str(out / "cluster"),
                "--nodes",
                "2",
                "--days",
                "1",
                "--interval",
                "300",
            ),
            "lab accuracy": ("--jobs", "30"),
            "lake counters": (),
            "lake devices": (),
            "version": (),
        }
        names = [command.name for command in COMMANDS]
        missing = [name for name in names if name not in calls]
        assert not missing, f"add a call of {missing} to {__name__}"
        return {name: (*name.split(), *calls[name]) for name in names}
