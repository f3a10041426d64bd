"""What the scenario left, and lakes that are filled from it by the project's own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slurm_exporter import Exporter, exporters
from slurm_scenario import Scenario, play
from slurm_truth import Gpu, Held, Run, Sample, read_accounting, read_map, samples_of

from servers.prometheus import prometheus
from servers.slurm import SlurmCluster
from servers.victoria import victoria


@dataclass(frozen=True, slots=True)
class Recording:
    """What the scenario left: Slurm's records, the exporters' pages, and two servers that kept the samples.

    `plain`: Prometheus, which saw no job ids; `labelled`: VictoriaMetrics, whose series carry `hpc_job`.
    """

    scenario: Scenario
    folder: Path
    pages: dict[str, Exporter]
    plain: str
    labelled: str

    @property
    def runs(self) -> list[Run]:
        """Every run in the accounting, also those that never began."""
        return read_accounting(self.scenario.accounting)

    @property
    def map(self) -> Path:
        """The log of prolog and epilog."""
        return self.scenario.cluster.plan.hooks / "gpu-map.log"

    @property
    def held(self) -> list[Held]:
        """Who held what, as prolog and epilog wrote it down."""
        return read_map(self.map)

    @property
    def since(self) -> float:
        """From when samples are looked at: some seconds of idle GPUs come first."""
        return self.scenario.began - 10

    def asked(self, url: str) -> list[str]:
        """The words that ask a server for everything it has of the scenario."""
        first, last = (
            datetime.fromtimestamp(t, UTC).isoformat() for t in (self.scenario.began - 10, self.scenario.ended)
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
        pages = stack.enter_context(exporters(plan.gpu_nodes, gpus=plan.gpus, held=plan.hooks / "held"))
        targets = [f"127.0.0.1:{exporter.port}" for exporter in pages.values()]
        plain = stack.enter_context(prometheus(folder / "prometheus", targets=targets))
        scrape = folder / "scrape.yml"
        scrape.write_text(
            "global: {scrape_interval: 2s}\n"
            "scrape_configs:\n- job_name: dcgm\n  metrics_path: /with-job\n"
            f"  static_configs: [{{targets: {targets}}}]\n"
        )
        labelled = stack.enter_context(victoria(folder / "victoria", arguments=[f"-promscrape.config={scrape}"]))
        scenario = play(slurm, folder=folder)
        yield Recording(scenario, folder, pages, plain, labelled)


@dataclass(frozen=True, slots=True)
class Filled:
    """A lake, filled and analyzed."""

    lake: Path

    @classmethod
    def by(cls, lake: Path, *ingests: list[str]) -> Filled:
        """A new lake, filled by `tachograph ingest` with each of the words given, and analyzed."""
        filled = cls(lake)
        for words in ingests:
            filled.run("ingest", *words)
        filled.run("analyze")
        return filled

    def run(self, *words: str) -> str:
        """What a command of the project prints about the lake."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")}
        done = subprocess.run(
            [sys.executable, "-m", "tachograph", *words, "--lake", str(self.lake)],
            env=environment,
            cwd=self.lake.parent,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self) -> list[dict[str, Any]]:
        """`tachograph jobs --json`."""
        answer: list[dict[str, Any]] = json.loads(self.run("jobs", "--json"))
        return answer
