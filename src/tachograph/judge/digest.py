"""What decides verdicts, in short: whether findings are those of the configuration as it is now."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple

import msgspec

from tachograph.catalog.config import Configuration
from tachograph.judge.rules import sources
from tachograph.judge.workload.settings import settings_of
from tachograph.sources.slurm.partitions import SlurmPartition, read_partitions


def judge_digest(
    configuration: Configuration, partitions: Mapping[str, SlurmPartition] | None = None
) -> str:
    """Return a digest of every option that decides a verdict, and of the texts of rules.

    `partitions`: as Slurm records them; None: they are read. No check is imported. Errors:
    ConfigError for a folder of rules that cannot be read, and for settings of workload classes that
    make no sense; InputError for a file of partitions.
    """
    settings_of(configuration.workload)
    if partitions is None:
        partitions = read_partitions(configuration.slurm.partitions_file)
    deciding = [
        configuration.thresholds,
        configuration.classes,
        configuration.workload,
        configuration.waste.idle_minutes,
        configuration.site.cluster,
        # not the file itself: it also holds the load of the moment
        [
            (name, known.whole_nodes, sorted(map(astuple, known.nodes)))
            for name, known in sorted(partitions.items())
        ],
        sources.digest(configuration.rules),
    ]
    return hashlib.sha256(msgspec.json.encode(deciding)).hexdigest()[:16]
