"""Jobs to judge with several settings: computes once what no setting changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np
import polars as pl

from tachograph.annexes.lab.accuracy import ANSWERS, Answers, VerdictScore, score_verdicts
from tachograph.catalog.config import ClassOptions
from tachograph.judge.classes.characteristics import GPU, HOST, class_limits
from tachograph.judge.classes.inputs import HOST_SUFFIX, ClassInput
from tachograph.judge.job_classes import CLASS_BY_CODE, JOB_CLASSES, class_inputs

NOT_APPLICABLE = -9  # a class that does not apply to the job: idle_nodes of one node


class Population:
    """Jobs and their stored data in the GPU form and, with node minutes, in the host form."""

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
        self._number_of = {key: number for number, key in enumerate(self.job_keys)}
        # every characteristic may get a threshold, so the windows of all of them are needed
        characteristics: dict[str, tuple[str, ...]] = {}
        for job_class in JOB_CLASSES:
            # these detect an interval in which nothing changes
            for code in job_class.codes if job_class.where is not None else ():
                characteristics[code] = tuple(HOST if code.endswith(HOST_SUFFIX) else GPU)
        widest = ClassOptions(
            window_minutes=window_minutes,
            hang_minutes=window_minutes,
            characteristics=characteristics,
        )
        forms = class_inputs(jobs, gpus, timelines, node_minutes, widest)
        self._forms = {form.host: form for form in forms if form.series.job_keys}

    @property
    def codes(self) -> tuple[str, ...]:
        """Classes that can be judged; host classes need node minutes."""
        return tuple(
            code
            for each in JOB_CLASSES
            for code in each.codes
            if code.endswith(HOST_SUFFIX) in self._forms
        )

    @property
    def minutes(self) -> int:
        """Minutes of all jobs together."""
        return sum(int(form.series.offset[-1]) for form in list(self._forms.values())[:1])

    def form(self, *, host: bool) -> ClassInput | None:
        """Return the GPU or host form; None if it is empty."""
        return self._forms.get(host)

    def verdicts(self, settings: ClassOptions, code: str) -> Answers:
        """Return the verdict of the judge on each job, in the order of `job_keys`."""
        host, job_class = code.endswith(HOST_SUFFIX), CLASS_BY_CODE[code]
        form = replace(self._forms[host], limits=class_limits(settings, host=host))
        answers = np.full(len(self.job_keys), NOT_APPLICABLE, np.int8)
        for place, finding in job_class.judge(job_class, form):
            answers[self._number_of[form.series.job_keys[place]]] = ANSWERS[finding.verdict]
        return answers

    def scores(
        self, settings: ClassOptions, labels: Mapping[str, Mapping[str, bool]]
    ) -> dict[str, VerdictScore]:
        """Return how the verdicts with these settings compare with the labels, class by class.

        `labels`: {class: {job_key: holds}}. Jobs to which a class does not apply are not counted; a
        class that cannot be judged, or has no labelled job here, has no score.
        """
        scores = {}
        for code in self.codes:
            of_class = labels.get(code, {})
            labelled = np.array([key in of_class for key in self.job_keys], np.bool_)
            if not labelled.any():
                continue
            truth = np.array([of_class.get(key, False) for key in self.job_keys], np.bool_)
            answers = self.verdicts(settings, code)
            counts = labelled & (answers != NOT_APPLICABLE)
            scores[code] = score_verdicts(answers[counts], truth[counts])
        return scores


def base(configured: ClassOptions) -> ClassOptions:
    """Return the configured window and T; thresholds and sets as they are built in."""
    return msgspec.structs.replace(configured, theta={}, level={}, busy={}, characteristics={})
