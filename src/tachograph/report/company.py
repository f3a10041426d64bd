"""Jobs that had the same GPUs as a job at the same time, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from tachograph.catalog.units import plural, printable, text

NAMED_JOBS = 5


@dataclass(frozen=True, slots=True)
class JobBeside:
    """A job on the same GPUs; `job`: its id as people read it."""

    job_key: str
    job: str
    user: str | None
    name: str | None

    @property
    def label(self) -> str:
        """Its id and its user."""
        label = f"job {printable(self.job)}"
        return f"{label} ({printable(self.user)})" if self.user else label


@dataclass(frozen=True, slots=True)
class GpuCompany:
    """Other jobs on the GPUs of a job.

    jobs: by start; others: how many more there were that are not shown; gpus: how many GPUs of the
    job records name; activity: mean utilisation (0..1) of these in its time, of all jobs together;
    None: not known. handovers: sentences, who had GPUs with errors before and after it.
    """

    jobs: tuple[JobBeside, ...] = ()
    others: int = 0
    gpus: int = 0
    activity: float | None = None
    handovers: tuple[str, ...] = ()

    @property
    def sentence(self) -> str | None:
        """Who had the GPUs too, and what they did in all; None: nobody is known.

        >>> job = JobBeside("c:12:0", "12", "ann", None)
        >>> GpuCompany((job,), 2, gpus=1, activity=0.834).sentence
        'Its GPU was also held by job 12 (ann) and 2 others: in all it was 83 % in use.'
        """
        if not self.jobs and not self.others:
            return None
        names = [job.label for job in self.jobs[:NAMED_JOBS]]
        more = self.others + len(self.jobs) - len(names)
        if more:
            names.append(plural(more, "other") if names else plural(more, "other job"))
        last = names.pop()
        listed = f"{', '.join(names)} and {last}" if names else last
        whose, they = (
            ("Its GPU was", "it was") if self.gpus == 1 else ("Its GPUs were", "they were")
        )
        if self.activity is None:
            return f"{whose} also held by {listed}."
        use = text(self.activity, "fraction")
        return f"{whose} also held by {listed}: in all {they} {use} in use."


NO_COMPANY = GpuCompany()
