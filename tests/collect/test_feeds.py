"""`[[sources]]` of the configuration: read alike whatever source it is, refused with the entry
and the key.
"""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tachograph.catalog.config import Configuration, load
from tachograph.catalog.errors import ConfigError
from tachograph.sources.prometheus_query import PrometheusSettings
from tachograph.sources.registry import configured_feeds, load_feed, settings_of, start_time
from tachograph.sources.sacct import SacctSettings as AccountingSettings

REPOSITORY = Path(__file__).resolve().parent.parent.parent
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
BEGINS = {
    "from = 2026-11-01": datetime(2026, 10, 31, 23, tzinfo=UTC),  # midnight in Berlin
    'from = "2026-11-01"': datetime(2026, 10, 31, 23, tzinfo=UTC),
    "from = 2026-11-01T10:30:00Z": datetime(2026, 11, 1, 10, 30, tzinfo=UTC),
    'from = "36h"': datetime(2026, 11, 20, tzinfo=UTC),
    'from = "2027-01-01"': NOW,
}


@pytest.mark.parametrize("source", ["prometheus", "sacct"])
@pytest.mark.parametrize(("written", "begin"), BEGINS.items())
def test_from_is_written_alike_in_every_source(source: str, written: str, begin: datetime) -> None:
    settings = settings_of({"source": source, **tomllib.loads(written)}, where="test")
    assert isinstance(settings, PrometheusSettings | AccountingSettings)
    assert start_time(settings.from_, now=NOW, zone_name="Europe/Berlin") == begin


@pytest.mark.parametrize(
    "raw", [{"source": "prometheus", "url": "http://p:9090"}, {"source": "sacct"}]
)
@pytest.mark.parametrize("written", ["soon", "99999999d"])
def test_an_invalid_start_time_is_reported_before_any_poll(
    raw: dict[str, str], written: str
) -> None:
    settings = settings_of({**raw, "from": written}, where="test")
    with pytest.raises(
        ConfigError, match=rf"sources.*{raw['source']}.*from: invalid time: '{written}'"
    ):
        load_feed(settings.source).connect(settings, configuration=Configuration())


def test_the_configuration_for_servers_can_be_collected_from(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "own-data.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    file = tmp_path / "tachograph.toml"
    file.write_text(written, encoding="utf-8")
    configuration = load(str(file), {})
    sources = configured_feeds(configuration, where=str(file))
    assert [settings.title for settings in sources] == [
        "prometheus",
        "sacct",
        "slurm-live",
        "slurm-nodes",
    ]
    for settings in sources:
        load_feed(settings.source).connect(settings, configuration=configuration).close()


@pytest.mark.parametrize(
    ("raw", "question"),
    [
        ({"source": "dcgm-exporter", "evry_s": 5}, "did you mean every_s?"),
        ({"source": "prometheus", "form": "1h"}, "did you mean from?"),
        ({"source": "prometheus", "labels": {"nod": ["x"]}}, "did you mean node?"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_one_that_was_meant(
    raw: dict[str, object], question: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(question)):
        settings_of(raw, where="test")
