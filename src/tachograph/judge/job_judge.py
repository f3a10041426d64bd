"""The judge of an analysis: what `pipeline.run.analyze` is handed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from socket import gethostname

from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import WorkersError
from tachograph.judge.checks import CHECKS
from tachograph.judge.digest import judge_digest
from tachograph.judge.judge import judge_jobs, rules_in_use
from tachograph.judge.rules.ruleset import RuleSet
from tachograph.judge.workload.arrays import MinuteLabeller
from tachograph.judge.workload.settings import settings_of
from tachograph.pipeline.summaries import JobTables
from tachograph.sources.slurm.partitions import SlurmPartition, read_partitions


class JobJudge:
    """Judges complete jobs by the checks, rules and settings of a configuration."""

    def __init__(self, configuration: Configuration) -> None:
        """Errors: ConfigError for settings of workload classes that make no sense."""
        self.configuration = configuration
        self.labeller = MinuteLabeller(settings_of(configuration.workload))

    @property
    def digest(self) -> str:
        """A digest of every option that decides a verdict, and of the texts of rules."""
        return judge_digest(self.configuration, self._partitions)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why rules of the site's folder were left out."""
        return tuple(map(str, self._ruleset.errors))

    def __call__(self, tables: JobTables) -> JobTables:
        """Return the tables with judged columns and with findings: one per (job_key, code)."""
        return judge_jobs(tables, self.configuration, self._ruleset, self._partitions)

    def __getstate__(self) -> dict[str, object]:
        """Return what another process needs to judge the same: rules and partitions as read here.

        Errors: ConfigError for rules that cannot be read.
        """
        return {
            "_ruleset": self._ruleset,
            "_partitions": self._partitions,
            "configuration": self.configuration,
            "labeller": self.labeller,
            "codes": tuple(check.code for check in CHECKS),
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        """Errors: WorkersError where this process has other checks, which packages may bring."""
        codes = state.pop("codes")
        if codes != tuple(check.code for check in CHECKS):
            raise WorkersError(
                f"a worker on {gethostname()} has other checks than this analysis",
                do="install on the workers the packages that are installed here",
            )
        self.__dict__.update(state)

    @cached_property
    def _ruleset(self) -> RuleSet:
        return rules_in_use(self.configuration)

    @cached_property
    def _partitions(self) -> Mapping[str, SlurmPartition]:
        return read_partitions(self.configuration.slurm.partitions_file)
