"""What --once says of a source in trouble; the configuration that judges jobs on their screen."""

from __future__ import annotations

import asyncio

from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.tui.app import WatchApp
from tachograph.annexes.watch.tui.job import JobScreen
from tachograph.catalog.config import Configuration
from tui_screens import Clock, app_of, settled, watching


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
