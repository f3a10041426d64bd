"""What most commands begin with: the configuration, the lake, the instant that is now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tachograph import config
from tachograph.cli.options import Arguments
from tachograph.config import Configuration
from tachograph.lake import Lake
from tachograph.units import parse_time


@dataclass(frozen=True, slots=True)
class Opened:
    """Configuration, lake, and the instant up to which things are looked at."""

    configuration: Configuration
    lake: Lake
    now: datetime


def open_lake(arguments: Arguments) -> Opened:
    """Return what the options name.

    Errors: ConfigError, LakeError where there is no lake.
    """
    configuration = config.load(arguments.config)
    lake = Lake.open(config.lake_location(arguments.lake, configuration))
    now = datetime.now(UTC)
    as_of = getattr(arguments, "as_of", None)
    if as_of:
        now = parse_time(as_of, now=now, zone_name=configuration.site.time_zone)
    return Opened(configuration, lake, now)
