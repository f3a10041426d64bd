"""Jobs that are judged again and again with other settings: what depends on no setting is computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec
import numpy as np
import polars as pl

from tachograph.catalog.config import ClassOptions
from tachograph.catalog.errors import UsageError
from tachograph.judge.accuracy import Answers
from tachograph.judge.checks.stable import Steadiness, stable_answers, stable_votes, steadiness
from tachograph.judge.classes.characteristics import GPU, HOST, Characteristic, class_limits
from tachograph.judge.classes.idleness import idle_answers, idle_votes
from tachograph.judge.classes.inputs import HOST_SUFFIX, ClassInput, JobClass
from tachograph.judge.classes.kernel import NO, UNDECIDED, YES, Votes
from tachograph.judge.classes.series import Extremes, Units, extremes
from tachograph.judge.classes.windows import hang_votes, majority
from tachograph.judge.job_classes import CLASS_BY_CODE, JOB_CLASSES, class_inputs

NOT_APPLICABLE = -9  # a class that does not apply to the job: idle_nodes of one node
# classes that detect an interval in which nothing changes: {class: where it lies}
HANG_PLACES: Mapping[str, int] = MappingProxyType(
    {each.code: each.where for each in JOB_CLASSES if each.where is not None}
)
_CODE_OF = {"yes": YES, "no": NO, "unknown": UNDECIDED}


@dataclass(slots=True)
class _KnownInput:
    """One form, where its jobs stand among all, and what was computed of it so far."""

    form: ClassInput
    place: Sequence[int]
    hangs: dict[tuple[str, int, float, float | None, float], Votes] = field(default_factory=dict)
    units: dict[tuple[str, str], Extremes] = field(default_factory=dict)
    steady: dict[str, Steadiness] = field(default_factory=dict)


class Population:
    """Jobs and what was stored of them, in the form of GPUs and, where there are minutes of nodes, of hosts."""

    def __init__(
        self,
        jobs: pl.DataFrame,
        gpus: pl.DataFrame,
        timelines: pl.DataFrame,
        node_minutes: pl.DataFrame,
        *,
        window_minutes: int,
    ) -> None:
        self.job_keys = tuple(jobs.get_column("job_key"))
        self.users = tuple(jobs.get_column("user"))
        self.starts = tuple(jobs.get_column("start"))
        place = {key: number for number, key in enumerate(self.job_keys)}
        every = {code: tuple(_known(code)) for each in JOB_CLASSES for code in each.codes if each.code in HANG_PLACES}
        widest = ClassOptions(window_minutes=window_minutes, hang_minutes=window_minutes, characteristics=every)
        made = class_inputs(jobs, gpus, timelines, node_minutes, widest)
        self._forms = {
            form.host: _KnownInput(form, [place[key] for key in form.series.job_keys])
            for form in made
            if form.series.job_keys
        }

    @property
    def codes(self) -> tuple[str, ...]:
        """Classes that can be judged: of hosts only where there are minutes of nodes."""
        return tuple(code for each in JOB_CLASSES for code in each.codes if code.endswith(HOST_SUFFIX) in self._forms)

    @property
    def minutes(self) -> int:
        """Minutes of all jobs together."""
        return sum(int(known.form.series.offset[-1]) for known in list(self._forms.values())[:1])

    def form(self, *, host: bool) -> ClassInput | None:
        """Return the form of GPUs, or of hosts; None where there is nothing in it."""
        known = self._forms.get(host)
        return None if known is None else known.form

    def answers(self, settings: ClassOptions, codes: Sequence[str]) -> dict[str, Answers]:
        """Return {class: verdict of each job}, in the order of `job_keys`.

        As the judge gives them, but for jobs of which a part was not measured: where it can exclude a class by
        utilisation alone, they are still undecided here.
        """
        found = {}
        for code in codes:
            known, job_class = self._forms[code.endswith(HOST_SUFFIX)], CLASS_BY_CODE[code]
            found[code] = self._placed(known, _answers(known, job_class, code, settings))
        return found

    def verdicts(self, settings: ClassOptions, codes: Sequence[str]) -> dict[str, Answers]:
        """Return the same as the judge itself gives them; slower."""
        found = {}
        for code in codes:
            known, job_class = self._forms[code.endswith(HOST_SUFFIX)], CLASS_BY_CODE[code]
            form = replace(known.form, limits=class_limits(settings, host=known.form.host))
            here = np.full(len(known.place), NOT_APPLICABLE, np.int8)
            for place, finding in job_class.judge(job_class, form):
                here[place] = _CODE_OF[finding.verdict]
            found[code] = self._placed(known, here)
        return found

    def _placed(self, known: _KnownInput, here: Answers) -> Answers:
        found = np.full(len(self.job_keys), NOT_APPLICABLE, np.int8)
        found[known.place] = here
        return found


def base(configured: ClassOptions) -> ClassOptions:
    """Return the configured window and T; thresholds and sets as they are built in."""
    return msgspec.structs.replace(configured, theta={}, level={}, busy={}, characteristics={})


def _known(code: str) -> Mapping[str, Characteristic]:
    return HOST if code.endswith(HOST_SUFFIX) else GPU


def candidates(job_class: JobClass, code: str) -> tuple[str, ...]:
    """Characteristics that may vote: utilisation is no evidence on a hang; idleness needs a threshold for busy."""
    known = _known(code)
    if job_class.code in HANG_PLACES:
        return tuple(name for name in known if name != "gpu_util")
    if job_class.code.startswith("idle_"):
        return tuple(name for name, c in known.items() if c.busy is not None and name not in ("pcie", "nvlink"))
    return tuple(job_class.host if code.endswith(HOST_SUFFIX) else job_class.gpu)


def _answers(known: _KnownInput, job_class: JobClass, code: str, settings: ClassOptions) -> Answers:
    form = known.form
    limit = class_limits(settings, host=form.host)
    names = limit.names(code, job_class.host if form.host else job_class.gpu)
    if job_class.code in HANG_PLACES:
        where = HANG_PLACES[job_class.code]
        votes = [_hang(known, name, where, limit.theta[name], limit.level[name], limit.hang) for name in names]
        answer = majority(votes)
        answer[form.series.minutes < limit.hang] = NO
        return answer
    if job_class.code.startswith("idle_"):
        kind, units = ("nodes", form.nodes) if job_class.code == "idle_nodes" else ("gpus", form.gpus)
        return _idle(known, kind, units, {name: limit.busy[name] or 0.0 for name in names})
    if job_class.code != "stable":
        raise UsageError(f"class {code} cannot be tuned", do=f"label some of: {', '.join(HANG_PLACES)}, idle_*, stable")
    more = job_class.more_host if form.host else job_class.more_gpu
    steady = {name: stable_votes(_steady(known, name), level=limit.level[name]) for name in (*names, *more)}
    answer = stable_answers([steady[name] for name in names], [steady[name] for name in more])
    answer[form.series.minutes < limit.window] = UNDECIDED
    return answer


def _hang(known: _KnownInput, name: str, where: int, theta: float, level: float | None, hang: float) -> Votes:
    key = (name, where, theta, level, hang)
    if key not in known.hangs:
        votes = hang_votes(known.form.windows, name, where=where, theta=theta, level=level, hang_minutes=hang)
        known.hangs[key] = votes.vote
    return known.hangs[key]


def _idle(known: _KnownInput, kind: str, units: Units, busy: Mapping[str, float]) -> Answers:
    for name in busy:
        if (kind, name) not in known.units:
            known.units[kind, name] = extremes(units, name)
    found = {name: known.units[kind, name] for name in busy}
    answer = idle_answers([idle_votes(found[name], busy=limit) for name, limit in busy.items()])
    counts = np.diff(units.offset)
    measured = np.max([each.measured for each in found.values()], axis=0)
    answer[(answer == NO) & (measured < counts)] = UNDECIDED
    answer[counts < 2] = NOT_APPLICABLE
    return answer


def _steady(known: _KnownInput, name: str) -> Steadiness:
    if name not in known.steady:
        known.steady[name] = steadiness(known.form.series, name)
    return known.steady[name]
