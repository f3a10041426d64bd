"""The likely culprit of a hang: each pattern, what looks like one, what was not measured, and a
case by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import mean, median
from typing import Any

import polars as pl
import pytest

from jobframes import START, frame, gpus, summary
from tachograph.catalog.tables import JOB_MINUTES
from tachograph.judge.culprit import Culprit, find_culprit, hang_culprit
from tachograph.judge.finding import Finding, Verdict
from tachograph.report.job import build_job_report, job_json
from tachograph.report.job_page import job_html
from tachograph.report.job_text import job_text

Levels = dict[str, float]
WORK: Levels = {
    "gpu_util": 0.95,
    "sm_active": 0.6,
    "tensor_active": 0.3,
    "dram_active": 0.2,
    "power_w": 300.0,
}
POLL: Levels = {
    "gpu_util": 1.0,
    "sm_active": 0.1,
    "tensor_active": 0.0,
    "dram_active": 0.0,
    "power_w": 130.0,
}
IDLE: Levels = {
    "gpu_util": 0.0,
    "sm_active": 0.0,
    "tensor_active": 0.0,
    "dram_active": 0.0,
    "power_w": 70.0,
}
KERNEL: Levels = {**POLL, "sm_active": 0.9, "power_w": 210.0}
Course = Sequence[tuple[int, Levels | None]]


def job(
    courses: Mapping[tuple[str, int], Course], **columns: Any
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """job_gpus and job_minutes of GPUs that do one thing after the other for so many minutes;
    None: not measured.
    """
    rows: list[dict[str, Any]] = []
    for (node, gpu), course in courses.items():
        minute = 0
        for length, levels in course:
            for at in range(minute, minute + length):
                wobble = 1 + 0.02 * ((at * 7 + gpu * 3) % 5 - 2)
                key = {
                    "job_key": "c:100:1",
                    "job_id": "100",
                    "seq": 1,
                    "node": node,
                    "gpu": gpu,
                    "minute": at,
                }
                if levels is not None:
                    values = {
                        name: min(1.0, v * wobble) if v <= 1 else v * wobble
                        for name, v in levels.items()
                    }
                    rows.append(key | {"t": START + timedelta(minutes=at), "samples": 2} | values)
            minute += length
    held = [{"node": node, "gpu": gpu} | {name: of.get((node, gpu)) for name, of in columns.items()}
            for node, gpu in courses]  # fmt: skip
    return gpus(*held), frame(JOB_MINUTES, rows)


def alike(course: Course, *, nodes: int = 1, per_node: int = 4) -> dict[tuple[str, int], Course]:
    """The same course for all GPUs."""
    return {(f"n{node}", gpu): course for node in range(1, nodes + 1) for gpu in range(per_node)}


def named(courses: Mapping[tuple[str, int], Course], **columns: Any) -> Culprit:
    """The culprit of a job that held these GPUs."""
    return find_culprit(*job(courses, **columns), held=len(courses))


HUNG: Course = ((60, WORK), (40, POLL))
STOPPED: Course = ((60, WORK), (40, IDLE))


def work(minutes: float, *after: tuple[int, Levels | None], of: int = 100) -> Course:
    """Work for so many minutes, then other things, the last of them up to the end."""
    *others, (_, last) = after
    before = int(minutes) + sum(length for length, _ in others)
    return ((int(minutes), WORK), *others, (of - before, last))


def unlike(course: Course, *others: Course) -> dict[tuple[str, int], Course]:
    """Four GPUs, of which the last ones are unlike those that hung."""
    return alike(HUNG) | {("n1", 2): course} | {("n1", at): each for at, each in enumerate(others)}


END = (0, POLL)
DARK, QUIET = (0, None), (0, IDLE)
UNLIKE_SM = [{**POLL, "sm_active": 0.1 + more} for more in (0.0, 0.05, 0.095, 0.105, 0.21, 0.24)]
PAUSED: Course = ((20, WORK), (4, IDLE), (30, WORK))


@pytest.mark.parametrize(
    ("courses", "expected"),
    [
        # it hung for ten minutes at least
        (alike(work(60, END, of=70)) | {("n1", 2): work(60, QUIET, of=70)}, "idle"),
        (alike(work(60, END, of=69)) | {("n1", 2): work(60, QUIET, of=69)}, "two or more of its GPUs worked"),
        # of ten minutes eight are alike, and five are measured
        (unlike(work(60, (3, POLL), QUIET)), "idle"),
        (unlike(work(60, (4, POLL), QUIET)), "of 4 GPUs 3 waited by polling, 0 were idle, 1 did neither"),
        (unlike(work(60, (6, None), QUIET)), "idle"),
        (unlike(work(60, (7, None), QUIET)), "GPU 2 had no samples when work stopped"),
        # stops within two minutes are of the same time
        (unlike(work(62, QUIET)), "idle"),
        (unlike(work(63, QUIET)), "GPU 2 stopped after the others had begun to wait"),
        (unlike(work(70, END)), "working"),
        (unlike(work(69, END)), "all 4 GPUs stopped within 10 min and waited by polling"),
        (unlike(work(100, END), work(58, END)), "working"),
        (unlike(work(100, END), work(57, END)), "the others stopped one after the other, 3 min apart"),
        (unlike(work(100, END), STOPPED), "GPU 2 worked on after the others, of which no more than 2 of the 3"),
        (unlike(work(100, END), work(60, DARK)), "working"),
        # the last three minutes of a GPU that reports nothing may be lost
        (unlike(work(55, DARK)), "reports_nothing"),
        (unlike(work(54, DARK)), "GPU 2 had no samples"),
        (unlike(work(62, DARK)), "reports_nothing"),
        (unlike(work(63, DARK)), "GPU 2 had no samples"),
        (unlike(work(60, DARK), STOPPED), "idle"),
        (alike(STOPPED) | {("n1", 2): work(60, DARK)}, "reports_nothing"),
        (alike(HUNG, nodes=2) | {("n2", gpu): work(58, DARK) for gpu in range(4)}, "reports_nothing"),
        (alike(HUNG, nodes=2) | {("n2", gpu): work(57, DARK) for gpu in range(4)}, "4 GPUs had no samples"),
        (alike(HUNG, nodes=2) | {("n2", gpu): work(60, DARK) for gpu in range(3)}, "3 GPUs had no samples"),
        (alike(HUNG, nodes=2) | {("n2", gpu): STOPPED for gpu in range(3)},
         "3 GPUs were idle while the 5 other GPUs waited by polling, not one"),
        # the first of several to stop
        (alike(STOPPED) | {("n1", 1): work(57, QUIET)}, "stopped_first"),
        (alike(STOPPED) | {("n1", 1): work(58, QUIET)}, "all 4 GPUs stopped within 3 min and were idle"),
        (alike(STOPPED) | {("n1", 1): work(28, QUIET)}, "stopped_first"),
        (alike(STOPPED) | {("n1", 1): work(27, QUIET)}, "GPU 1 stopped 33 min before the others, which worked on"),
        (alike(STOPPED) | {("n1", 1): work(52, QUIET), ("n1", 3): work(58, QUIET)}, "stopped_first"),
        (alike(STOPPED) | {("n1", 1): work(52, QUIET), ("n1", 3): work(57, QUIET)}, "its GPUs stopped"),
        (alike(STOPPED, per_node=3) | {("n1", 1): work(52, QUIET)}, "stopped_first"),
        (alike(work(61, QUIET)) | {("n1", 1): (*PAUSED, (46, IDLE))}, "stopped_first"),
        (alike(STOPPED) | {("n1", 1): (*PAUSED, (46, IDLE))}, "pauses as long as between its GPUs'"),
        # a tenth of the SM activity, or of the power at work, and four times what the others differ
        (unlike(work(60, (0, UNLIKE_SM[3]))), "kernel"),
        (unlike(work(60, (0, UNLIKE_SM[2]))), "all 4 GPUs stopped within 1 min"),
        (unlike(work(60, (0, UNLIKE_SM[5])), work(60, (0, UNLIKE_SM[1]))), "kernel"),
        (unlike(work(60, (0, UNLIKE_SM[4])), work(60, (0, UNLIKE_SM[1]))), "all 4 GPUs stopped within 1 min"),
        (unlike(work(60, (0, {**POLL, "power_w": 163.0}))), "kernel"),
        (unlike(work(60, (0, {**POLL, "power_w": 157.0}))), "all 4 GPUs stopped within 1 min"),
        (alike(HUNG, per_node=3) | {("n1", 2): work(60, (0, KERNEL))}, "kernel"),
        (alike(HUNG, per_node=2) | {("n1", 1): work(60, (0, KERNEL))}, "all 2 GPUs stopped within 1 min"),
    ],
)  # fmt: skip
def test_what_just_sets_a_gpu_apart_and_what_just_does_not(
    courses: dict[tuple[str, int], Course], expected: str
) -> None:
    found = named(courses)
    if found.named:
        assert found.pattern == expected, found.line
    else:
        assert found.sentence.startswith(f"No culprit can be named: {expected}"), found.line


OTHERS_POLL = "the 3 other GPUs waited by polling"
NUMBERS = "100 % and 130 W of the others)"


@pytest.mark.parametrize(
    ("courses", "line", "stopped_min"),
    [
        (unlike(work(57, QUIET)), (f"GPU 2, which was idle from 57 min after the start on while {OTHERS_POLL} "
         f"(utilisation 0 % and 70 W, {NUMBERS}; high confidence."), 57),
        (unlike(work(100, END)), (f"GPU 2, which worked on while {OTHERS_POLL} "
         f"(utilisation 95 % and 300 W, {NUMBERS}; medium confidence."), None),
        (unlike(work(58, DARK)), ("GPU 2, which reported nothing from 58 min after the start on, when work stopped, "
         f"while {OTHERS_POLL.replace('other', 'other measured')}; medium confidence."), 58),
        (alike(STOPPED) | {("n1", 2): work(59, DARK)}, ("GPU 2, which reported nothing from 59 min after the start on, "
         "when work stopped, while the 3 other GPUs did nothing; medium confidence."), 59),
        (unlike(work(60, (0, KERNEL))), (f"GPU 2, which had SM activity 90 % while {OTHERS_POLL} at 10 % "
         f"(utilisation 100 % and 210 W, {NUMBERS}; medium confidence."), 60),
        (unlike(work(60, (0, KERNEL)), work(60, (0, {**POLL, "sm_active": 0.12}))),
         (f"GPU 2, which had SM activity 90 % while {OTHERS_POLL} at 10 % to 12 % "
         f"(utilisation 100 % and 210 W, {NUMBERS}; medium confidence."), 60),
        (unlike(work(60, (0, {**POLL, "power_w": 210.0}))), ("GPU 2, which had power, of that at work, 70 % while "
         f"{OTHERS_POLL} at 43 % (utilisation 100 % and 210 W, {NUMBERS}; medium confidence."), 60),
        (alike(STOPPED) | {("n1", 1): work(52, QUIET), ("n1", 3): work(58, QUIET)},
         ("GPU 1, which stopped 52 min after the start, 6 min before the 3 other GPUs, which stopped within 2 min of "
         "each other (utilisation 0 % and 70 W, 0 % and 70 W of the others); medium confidence."), 52),
        (alike(HUNG, nodes=2) | {("n2", gpu): work(59, QUIET) for gpu in range(4)},
         ("all 4 GPUs of n2, which were idle from 59 min after the start on while the 4 other GPUs waited by polling "
         f"(utilisation 0 % and 70 W, {NUMBERS}; high confidence."), 59),
        (alike(HUNG, nodes=2) | {("n2", gpu): work(59, DARK) for gpu in range(4)},
         ("all 4 GPUs of n2, which reported nothing from 59 min after the start on, when work stopped, while the 4 "
         "other measured GPUs waited by polling; low confidence."), 59),
    ],
)  # fmt: skip
def test_sentences_and_numbers_of_each_pattern(
    courses: dict[tuple[str, int], Course], line: str, stopped_min: float | None
) -> None:
    found = named(courses)
    assert found.line.replace("99 %", "100 %") == f"Likely culprit: {line}"
    stopped_s = found.evidence.get("culprit_stopped_after_s")
    assert stopped_s == (None if stopped_min is None else 60 * stopped_min)
    assert found.evidence.get("culprit_gpu") == found.gpu
    lag_s = found.evidence.get("culprit_before_others_s")
    assert lag_s == (6 * 60 if found.pattern == "stopped_first" else None)


@pytest.mark.parametrize(
    ("courses", "reason"),
    [
        (alike(HUNG), "all 4 GPUs stopped within 1 min and waited by polling"),
        (alike(STOPPED), "all 4 GPUs stopped within 1 min and were idle"),
        (alike(STOPPED, per_node=2) | {("n1", 1): ((52, WORK), (48, IDLE))}, "all 2 GPUs"),
        (alike(STOPPED, per_node=2) | {("n1", 1): ((30, WORK), (70, IDLE))}, "of two GPUs GPU 0 worked on"),
        (alike(STOPPED) | {("n1", gpu): ((30 + 7 * gpu, WORK), (70 - 7 * gpu, IDLE)) for gpu in range(4)},
         "one after the other"),
        (alike(((100, WORK),)), "worked until its end"),
        (alike(((100, IDLE),)) | {("n1", 0): HUNG}, "1 of its 4 GPUs took part"),
        ({("n1", 0): HUNG}, "it had one GPU"),
    ],
)  # fmt: skip
def test_where_none_or_several_are_set_apart_none_is_named(
    courses: dict[tuple[str, int], Course], reason: str
) -> None:
    found = named(courses)
    assert not found.named
    assert found.sentence.startswith("No culprit can be named: ")
    assert reason in found.line


def test_a_gpu_that_was_never_used_is_no_culprit() -> None:
    assert not named(alike(HUNG) | {("n1", 2): ((100, IDLE),)}).named
    assert named(alike(HUNG) | {("n1", 2): ((100, IDLE),), ("n1", 0): STOPPED}).gpu == 0


def test_nothing_is_concluded_from_minutes_that_were_not_measured() -> None:
    gap: Course = ((40, WORK), (60, None))
    before = named(alike(HUNG) | {("n1", 2): gap})
    assert not before.named
    assert "GPU 2 had no samples when work stopped" in before.sentence
    of_node = named(alike(HUNG, nodes=2) | {("n2", gpu): gap for gpu in range(4)})
    assert not of_node.named
    assert "4 GPUs had no samples" in of_node.sentence
    first = named(alike(STOPPED) | {("n1", 1): ((52, WORK), (9, None), (39, IDLE))})
    assert not first.named  # it may have worked until the others stopped
    without = {key: [(length, {"gpu_util": levels["gpu_util"], "power_w": 100.0} if levels else None)
               for length, levels in course] for key, course in alike(HUNG).items()}  # fmt: skip
    assert (
        "not recorded"
        in named(
            {**without, ("n1", 0): [(60, {"gpu_util": 1.0}), (40, {"gpu_util": 0.0})]}
        ).sentence
    )


def test_without_stored_minutes_none_is_named() -> None:
    held, every = job(alike(HUNG))
    assert "no minutes of its GPUs are stored" in find_culprit(held, every.clear(), held=4).sentence
    assert (
        "not recorded"
        in find_culprit(held, every.with_columns(gpu=pl.col("gpu") + 9), held=4).sentence
    )


def test_less_was_measured_so_the_finding_is_less_sure() -> None:
    courses = alike(HUNG, nodes=2) | {("n1", 2): STOPPED}
    assert named(courses).confidence == "high"
    partly = named(courses | {("n2", 3): ((30, WORK), (70, None))})
    assert (partly.gpu, partly.confidence) == (2, "medium")
    unseen = find_culprit(*job(courses), held=9)
    assert (unseen.gpu, unseen.confidence) == (2, "medium")


def test_errors_of_the_driver_are_evidence_but_no_consequences_of_others() -> None:
    lost = alike(HUNG) | {("n1", 2): ((60, WORK), (40, None))}
    sure = named(lost, xid_events={("n1", 2): 1}, xid_event_max={("n1", 2): 79.0})
    assert (sure.gpu, sure.confidence, sure.evidence["xid_events"]) == (2, "high", 1.0)
    alone = named(alike(HUNG), xid_events={("n1", 3): 2}, xid_event_max={("n1", 3): 31.0})
    assert (alone.gpu, alone.pattern, alone.confidence) == (3, "xid", "medium")
    assert not named(alike(HUNG), xid_events={("n1", 3): 2}, xid_event_max={("n1", 3): 45.0}).named
    two = {("n1", 3): 1, ("n1", 1): 1}
    assert not named(alike(HUNG), xid_events=two, xid_event_max=dict.fromkeys(two, 31.0)).named
    elsewhere = named(lost, xid_events={("n1", 0): 1}, xid_event_max={("n1", 0): 31.0})
    assert (elsewhere.gpu, elsewhere.confidence) == (2, "low")


def test_samples_of_nodes_ten_minutes_apart_still_name_it() -> None:
    held, every = job(
        alike(((200, WORK), (200, POLL)), nodes=2) | {("n2", 1): ((200, WORK), (200, IDLE))}
    )
    phase = pl.when(pl.col("node") == "n1").then(0).otherwise(7)
    found = find_culprit(held, every.filter(pl.col("minute") % 10 == phase), held=8)
    assert (found.node, found.gpu) == ("n2", 1)


def test_row_order_and_other_gpus_change_nothing() -> None:
    held, every = job(alike(HUNG) | {("n1", 2): STOPPED})
    assert find_culprit(
        held.reverse(), every.sample(fraction=1.0, shuffle=True, seed=3), held=4
    ) == find_culprit(held, every, held=4)


def test_by_hand_the_numbers_of_the_sentence_are_those_of_the_minutes() -> None:
    """Recomputed from the rows, by their definition: GPU 1 does nothing while the other three
    wait.
    """
    held, every = job(alike(HUNG) | {("n1", 1): ((57, WORK), (43, IDLE))})
    found = find_culprit(held, every, held=4)
    rows = every.to_dicts()
    at_work = [(row["gpu"], row["minute"]) for row in rows if row["tensor_active"] > 0.03]
    works = {gpu: max(minute for each, minute in at_work if each == gpu) for gpu in range(4)}
    assert works == {0: 59, 1: 56, 2: 59, 3: 59}
    # The minute of the stop is of both.
    window = range(max(works.values()) + 2, max(works.values()) + 2 + 10)

    def means(name: str, gpu: int) -> float:
        return mean(
            float(row[name]) for row in rows if row["gpu"] == gpu and row["minute"] in window
        )

    others = [0, 2, 3]
    assert found.evidence == pytest.approx(
        {
            "culprit_gpu": 1.0,
            "culprit_stopped_after_s": 57 * 60.0,
            "culprit_gpu_util": means("gpu_util", 1),
            "culprit_power_w": means("power_w", 1),
            "others_gpu_util": median(means("gpu_util", gpu) for gpu in others),
            "others_power_w": median(means("power_w", gpu) for gpu in others),
        },
        rel=1e-5,
    )  # fmt: skip
    assert found.line == (
        "Likely culprit: GPU 1, which was idle from 57 min after the start on while the 3 "
        "other GPUs waited by polling "
        "(utilisation 0 % and 70 W, 99 % and 130 W of the others); high confidence."
    )


def report_of(
    courses: Mapping[tuple[str, int], Course], code: str, *, verdict: Verdict = "yes"
) -> Any:
    """The report of a job with a finding."""
    held, every = job(courses)
    finding = Finding(
        code, "problem", "A title", "It hung.", evidence={"idle_s": 2400.0}, verdict=verdict
    )
    row = summary(elapsed_s=6000.0, gpus=len(courses), samples=800)
    return build_job_report(row, held, every, [finding], START)


def test_text_json_page_and_evidence_have_the_same_sentence() -> None:
    report = report_of(alike(HUNG) | {("n1", 2): STOPPED}, "busy_waiting")
    line, found = report.culprit.line, job_json(report)
    assert "GPU 2" in line
    assert line in " ".join(job_text(report, width=120).split())
    page = job_html(report).replace("\N{NO-BREAK SPACE}", " ")
    assert line in page
    assert (found["culprit"]["node"], found["culprit"]["gpu"], found["culprit"]["confidence"]) == (
        "n1",
        2,
        "high",
    )
    assert found["findings"][0]["sentence"] == f"It hung. {line}"
    assert found["evidence"]["busy_waiting"]["culprit_gpu"] == 2.0
    assert found["evidence"]["busy_waiting"]["idle_s"] == 2400.0
    assert "Likely culprit, index of the GPU" in page


def test_only_a_hang_of_several_gpus_has_one() -> None:
    courses = alike(HUNG) | {("n1", 2): STOPPED}
    assert report_of(courses, "memory_bound").culprit is None
    assert report_of(courses, "job_hang", verdict="no").culprit is None
    assert report_of({("n1", 0): HUNG}, "job_hang").culprit is None
    held, every = job(courses)
    assert hang_culprit([], held, every, held=4) is None
