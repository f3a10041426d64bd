"""What the scenario left, and lakes that are filled from it by the project's own commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slurm_exporter import Exporter, exporters
from slurm_scenario import WANTED, Scenario, play
from slurm_truth import Gpu, Held, Run, Sample, read_accounting, read_map, samples_of

from in_process import run_here
from servers.process import running
from servers.prometheus import prometheus
from servers.slurm import SlurmCluster
from servers.victoria import victoria

SACCT = 'source = "sacct"\nevery_s = 10'
LIVE = 'source = "slurm-live"\nevery_s = 2'


@dataclass(frozen=True, slots=True)
class Recording:
    """What the scenario left: Slurm's records, the exporters' pages, and two servers that kept the
    samples.

    `plain`: Prometheus, which saw no job ids; `labelled`: VictoriaMetrics, whose series carry
    `hpc_job`. `collected`: lakes into which `tachograph collect` put what the servers that it
    polled reported while all of it happened.
    """

    scenario: Scenario
    folder: Path
    pages: dict[str, Exporter]
    plain: str
    labelled: str
    collected: Mapping[str, Filled]

    @property
    def runs(self) -> list[Run]:
        """Every run of the scenario's jobs in the accounting, also those that never began."""
        return [run for run in read_accounting(self.scenario.accounting) if run.name in WANTED]

    @property
    def map(self) -> Path:
        """The folder of what prolog and epilog wrote, a file per node."""
        return self.scenario.cluster.plan.hooks / "gpu-map"

    @property
    def held(self) -> list[Held]:
        """Who held what, as prolog and epilog wrote it down, whichever test the job was of."""
        return read_map(self.map)

    @property
    def since(self) -> float:
        """From when samples are looked at: some seconds of idle GPUs come first."""
        return self.scenario.began - 10

    def requested(self, url: str) -> list[str]:
        """The options that query a server for everything it has of the scenario."""
        first, last = (
            datetime.fromtimestamp(t, UTC).isoformat()
            for t in (self.scenario.began - 10, self.scenario.ended)
        )
        return ["prometheus", "--url", url, "--from", first, "--to", last]

    def samples(self, url: str) -> dict[Gpu, list[Sample]]:
        """What a server has of the exporters' pages."""
        return samples_of(url, self.pages, since=self.since, until=self.scenario.ended)


@contextmanager
def recorded_scenario(slurm: SlurmCluster, folder: Path) -> Iterator[Recording]:
    """The scenario, played on the cluster while two servers watch its GPUs."""
    plan = slurm.plan
    with ExitStack() as stack:
        pages = stack.enter_context(
            exporters(plan.gpu_nodes, gpus=plan.gpus, held=plan.hooks / "held")
        )
        targets = [f"127.0.0.1:{exporter.port}" for exporter in pages.values()]
        plain = stack.enter_context(prometheus(folder / "prometheus", targets=targets))
        scrape = folder / "scrape.yml"
        scrape.write_text(
            "global: {scrape_interval: 2s}\n"
            "scrape_configs:\n- job_name: dcgm\n  metrics_path: /with-job\n"
            f"  static_configs: [{{targets: {targets}}}]\n"
        )
        labelled = stack.enter_context(
            victoria(folder / "victoria", arguments=[f"-promscrape.config={scrape}"])
        )
        samples = f'source = "prometheus"\nurl = "{plain}"\nevery_s = 5\nsettle_s = 2\nfrom = "1m"'
        token = folder / "token"
        token.write_text(slurm.token())
        rest = f'how = "rest"\nurl = "{slurm.rest_url}"\nuser = "root"\ntoken_file = "{token}"'
        collected = {
            "commands": filled(folder / "commands", slurm, samples, SACCT, LIVE),
            "rest": filled(folder / "rest", slurm, samples, f"{SACCT}\n{rest}", f"{LIVE}\n{rest}"),
        }
        with ExitStack() as meanwhile:
            for lake in collected.values():
                meanwhile.enter_context(_collecting(lake))
            scenario = play(slurm, folder=folder)
        for lake in collected.values():
            lake.run("collect", "--once")
        yield Recording(scenario, folder, pages, plain, labelled, collected)


def filled(folder: Path, slurm: SlurmCluster, *sources: str) -> Filled:
    """A lake in a new folder, beside a configuration that names the sources."""
    folder.mkdir()
    entries = "".join(f"[[sources]]\n{source}\n\n" for source in sources)
    (folder / "tachograph.toml").write_text(f'[collect]\nlisten = ""\nanalyze_s = 20\n\n{entries}')
    return Filled(folder / "lake", environment=slurm.environment)


@contextmanager
def _collecting(filled: Filled) -> Iterator[None]:
    """`tachograph collect`, for the time of the block."""
    with running(
        [sys.executable, "-m", "tachograph", "collect", "--lake", filled.lake],
        ready=(filled.lake / "_collect" / "lock").exists,
        log=filled.lake.parent / "collect.log",
        environment=filled.environment,
        within_s=180,
    ):
        yield


@dataclass(frozen=True, slots=True)
class Filled:
    """A lake, and the options of a command that fills it."""

    lake: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def ingest(self, *words: list[str]) -> None:
        """`tachograph ingest`, once with each of the words."""
        for one in words:
            self.run("ingest", *one)

    def run(self, *words: str) -> str:
        """What a command of the project prints about the lake."""
        outside = {
            name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")
        }
        words = (*words, "--lake", str(self.lake))
        done = run_here(words, self.lake.parent, {**outside, **self.environment})
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self) -> list[dict[str, Any]]:
        """`tachograph jobs --json`."""
        answer: list[dict[str, Any]] = json.loads(self.run("jobs", "--json"))
        return answer
