"""The demo fills a lake of its own, whatever the environment names."""

from __future__ import annotations

from tachograph.annexes.lab.commands.demo import _without_overrides


def test_the_demo_forgets_the_lake_of_the_environment_while_it_runs() -> None:
    environment = {
        "TACHOGRAPH_LAKE": "s3://ours/lake",
        "TACHOGRAPH_CONFIG": "ours.toml",
        "HOME": "home",
    }
    before = dict(environment)
    seen = []
    with _without_overrides(environment):
        seen.append(dict(environment))
    assert seen == [{"HOME": "home"}]
    assert environment == before
