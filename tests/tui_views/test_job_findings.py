"""Job classes of the job that is looked at: judged from what is kept of its past, in a thread."""

from __future__ import annotations

import time

from scenes import JOB, Scene, text_of, view_of

from tachograph.annexes.watch.tui.job import JobFindings, LiveJobJudge, finding_rows, past
from tachograph.catalog.config import Configuration
from tachograph.judge.finding import Finding


def test_the_past_is_what_was_kept_of_the_jobs_gpus() -> None:
    view = view_of(Scene(4, slow=(), lost=(2,)), polls=20)
    views = list(past(view, JOB))
    assert [one.snapshot.t for one in views] == view.history.times()[:-1].tolist()
    assert views[0].snapshot.gpus == view.snapshot.gpus
    assert views[0].current.tolist() == [True, True, False, True]
    for place, one in enumerate(views):
        for row in range(4):
            kept = float(view.history.series("sm_active", row)[place])
            value = one.snapshot.value("sm_active", row)
            assert kept != kept if value is None else value == kept


def test_a_gpu_that_never_works_is_found() -> None:
    scene = Scene(4, slow=(), idle=(3,), ran_s=0.0)
    view = view_of(scene, polls=110, step_s=10.0)
    judge = LiveJobJudge(JOB, Configuration(), wait_s=0.0)
    judge.take(view)
    ends = time.monotonic() + 120
    while judge.reported == JobFindings() and time.monotonic() < ends:
        time.sleep(0.05)
    judge.stop(wait_s=60)
    assert judge.reported.trouble == ""
    assert judge.reported.findings is not None
    holding = {one.code for one in judge.reported.findings if one.verdict == "yes"}
    assert "load_imbalance_waste" in holding
    assert "(GPU 3)" in text_of(finding_rows(judge.reported, width=79))


def test_nothing_is_judged_at_once() -> None:
    view = view_of(Scene(4, slow=()))
    judge = LiveJobJudge(JOB, Configuration())
    judge.take(view)
    judge.stop()
    assert judge.reported == JobFindings()
    heading = text_of(finding_rows(judge.reported, width=79))
    assert "Job classes" in heading
    assert "judging ..." in heading


def test_what_is_said_of_findings() -> None:
    hint = Finding("job_hang", "problem", "It hangs\x1b", "Nothing ran for 20 min.")
    no = Finding("stall", "hint", "It stalls", "It does not.", verdict="no")
    unsure = Finding("cold_start", "hint", "Cold", "Not known.", verdict="unknown")
    message = text_of(finding_rows(JobFindings((hint, no, unsure)), width=79))
    assert "problem: It hangs\\x1b" in message
    assert "stalls" not in message
    assert "undetermined: cold start" in message
    calm = text_of(finding_rows(JobFindings((no, unsure)), width=79))
    assert "none of 2 triggered\nundetermined: cold start" in calm
    assert "job classes failed: KeyError" in text_of(
        finding_rows(JobFindings(trouble="KeyError: 'x'"), width=79)
    )


def test_to_stop_waits_for_nothing() -> None:
    view = view_of(Scene(4, slow=()), polls=60)
    judge = LiveJobJudge(JOB, Configuration(), wait_s=0.0)
    for _ in range(10):  # more than may wait
        judge.take(view)
    began = time.monotonic()
    judge.stop()
    assert time.monotonic() - began < 5
    judge.stop(wait_s=120)
    assert not judge.at_work
