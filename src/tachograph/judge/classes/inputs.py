"""Job classes, and the two forms they are judged in: GPU telemetry and host metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tachograph.catalog.arrays import Longs
from tachograph.catalog.units import plural
from tachograph.judge.classes.characteristics import ClassLimits
from tachograph.judge.classes.kernel import Votes
from tachograph.judge.classes.series import IdleTimes, Series, Units
from tachograph.judge.classes.windows import VERDICT_OF, WindowSpreads
from tachograph.judge.finding import CheckedValue, Finding, FindingConfidence, Severity

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


HOST_SUFFIX = "_host"


@dataclass(frozen=True, slots=True)
class ClassInput:
    """Jobs in one form. `rows`: of job_summaries, in series order. `idle_times`: of their GPUs.

    `levels`: windows of the level of work; None of hosts.
    """

    host: bool
    rows: Sequence[JobSummaryRow]
    series: Series
    windows: WindowSpreads
    idle_times: IdleTimes
    nodes: Units
    gpus: Units
    limits: ClassLimits
    levels: WindowSpreads | None = None

    def code(self, code: str) -> str:
        """Return the code of a class in this form."""
        return code + HOST_SUFFIX if self.host else code


@dataclass(frozen=True, slots=True)
class JobClass:
    """A job class. `gpu`, `host`: voting characteristics per form; empty: no such form.

    `where`: kernel.END, BEGIN or MIDDLE, of classes that look for an interval in which nothing
    changes; they need windows. `more_gpu`, `more_host`: characteristics of which half suffice
    (stable).
    """

    code: str
    severity: Severity
    title: str
    judge: ClassJudge
    gpu: tuple[str, ...]
    host: tuple[str, ...]
    where: int | None = None
    more_gpu: tuple[str, ...] = ()
    more_host: tuple[str, ...] = ()

    @property
    def of_minutes(self) -> bool:
        """Whether it is judged by minutes; else by the means of GPUs or nodes."""
        return self.where is not None or bool(self.more_gpu)

    @property
    def codes(self) -> tuple[str, ...]:
        """Its codes: of the GPU form, and of the host form where there is one."""
        return (self.code, self.code + HOST_SUFFIX) if self.host else (self.code,)

    def finding(
        self,
        form: ClassInput,
        answer: int,
        sentence: str,
        *,
        missing: Sequence[str],
        checks: Iterable[CheckedValue],
        evidence: Mapping[str, float] | None = None,
        begin: datetime | None = None,
        end: datetime | None = None,
        confidence: FindingConfidence | None = None,
    ) -> Finding:
        """Return the finding on one job of the form; `missing`: unmeasured characteristics."""
        return Finding(
            form.code(self.code),
            self.severity,
            self.title,
            sentence,
            evidence=evidence or {},
            verdict=VERDICT_OF[answer],
            begin=begin,
            end=end,
            checks=tuple(checks),
            needs=tuple(
                dict.fromkeys(need for name in missing for need in form.limits.known[name].needs)
            )
            if missing
            else (),
            confidence=confidence,
        )

    def names(self, form: ClassInput) -> tuple[str, ...]:
        """Return the voting characteristics in `form`, and which of them must all agree."""
        return form.limits.names(form.code(self.code), self.host if form.host else self.gpu)


@dataclass(frozen=True, slots=True)
class ClassVerdicts:
    """Verdicts of a class on jobs of a form: their places in the form, and their answers.

    `finding`: returns the finding of a place with its answer. It is made when it is needed: of
    completed jobs only verdicts are.
    """

    places: Longs
    answers: Votes
    finding: Callable[[int, int], Finding]


class ClassJudge(Protocol):
    """Judges all jobs of a form; jobs to which a class does not apply are left out."""

    def __call__(self, job_class: JobClass, form: ClassInput) -> ClassVerdicts:
        """Return the verdicts."""
        ...


def listed(form: ClassInput, names: Sequence[str]) -> str:
    """Return characteristics by their labels: "power, SM activity"."""
    return ", ".join(form.limits.known[name].label for name in names)


def too_few(form: ClassInput, names: Sequence[str], missing: Sequence[str]) -> str:
    """Return the sentence if fewer than half of the characteristics were measured."""
    there = [name for name in names if name not in missing]
    what = f" ({listed(form, there)})" if there else ""
    return (
        f"Unknown: {len(there)} of {plural(len(names), 'characteristic')} "
        f"{'was' if len(there) == 1 else 'were'} measured{what}; at least "
        f"{-(-len(names) // 2)} are needed."
    )


def voted(
    form: ClassInput, names: Sequence[str], missing: Sequence[str], unused: Sequence[str] = ()
) -> str:
    """Return the end of a sentence naming characteristics without a vote, or ""."""
    parts = []
    if missing:
        parts.append(f"not measured: {listed(form, missing)}")
    if unused:
        parts.append(f"never used: {listed(form, unused)}")
    return (
        f" ({len(names) - len(missing) - len(unused)} of {len(names)} voted; {'; '.join(parts)})"
        if parts
        else ""
    )
