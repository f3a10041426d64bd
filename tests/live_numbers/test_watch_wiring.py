"""What --once says of a source in trouble; the configuration that judges jobs on their screen."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from servers.exporter import exporter
from servers.process import free_port
from tachograph.catalog.config import Configuration
from tachograph.cli import main
from tachograph.live.sources.simulated import SimulatedSource
from tachograph.tui.app import WatchApp
from tachograph.tui.job import JobScreen
from tui_screens import Clock, app_of, settled, watching

SERVED = {"DCGM_FI_DEV_GPU_UTIL": 50.0, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3.0}


@pytest.mark.slow
@pytest.mark.parametrize("form", [(), ("--json",), ("--csv", "all")])
def test_once_tells_of_an_exporter_that_does_not_answer(
    form: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("SLURM_", "CUDA_", "TACHOGRAPH_")):
            monkeypatch.delenv(name)
    gone = f"http://127.0.0.1:{free_port()}/metrics"
    with exporter({"n1": {0: SERVED}}) as server:
        assert main(["watch", "--url", server.url("n1"), "--url", gone, "--all", "--once", *form]) == 0
    printed = capsys.readouterr()
    message = [line for line in printed.err.splitlines() if gone.split("/")[2] in line and "cannot connect" in line]
    assert len(message) == 1, printed.err
    assert "n1" in printed.out


def test_jobs_are_judged_by_the_configuration_of_the_site() -> None:
    site = Configuration()
    app = WatchApp(SimulatedSource(8), interval_s=1.0, configuration=site)
    assert app.configuration is site

    async def judged() -> Configuration:
        clock = Clock()
        made = app_of(source=SimulatedSource(8, seed=3, clock=clock), clock=clock)
        made.configuration = site
        async with watching(app=made, polls=3) as pilot:
            assert made.view is not None
            held = next(one.job_id for one in made.view.snapshot.allocations.values())
            made.open("job", held)
            await settled(pilot)
            seen = made.seen
            assert isinstance(seen, JobScreen)
            assert seen._judge is not None
            return seen._judge._configuration

    assert asyncio.run(judged()) is site
