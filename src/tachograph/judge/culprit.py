"""The likely culprit of a hang on several GPUs: the first to stop, or the one unlike the others.

A process of a collective operation waits for the others by polling, so its GPU shows high
utilisation and some SM activity without arithmetic or memory traffic. The process that failed
leaves its GPU idle, or keeps it at work, or in a kernel that never returns, or the GPU itself
reports nothing any more. What sets one GPU apart is evidence; where none or several are set apart,
or what could set others apart was not measured, no culprit is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.units import plural, text
from tachograph.judge.activity import UNIT, number
from tachograph.judge.checks import check_of
from tachograph.judge.finding import Finding
from tachograph.judge.gpu_series import (
    IDLE,
    POLLING,
    UNCLEAR,
    UNMEASURED,
    WORKING,
    GpuSeries,
    longest_pause,
)

Confidence = Literal["high", "medium", "low"]
Pattern = Literal["idle", "working", "kernel", "reports_nothing", "stopped_first", "xid"]

LEAST_MINUTES = 10  # without work at the end: a shorter hang has no culprit
MOSTLY = 0.8  # of the measured minutes of a window show the same
ENOUGH = 0.5  # of the minutes of a window are measured
# Minutes: stops no further apart are of the same time; clocks and phases of nodes differ.
SAME_TIME = 2
# Minutes: a GPU that fails may have reported nothing for so long before its job stops.
_LOST_BEFORE = 3
LONGEST_LAG = 30  # minutes: GPUs that worked on for longer did not depend on the one that stopped
# Minutes after the stop that are compared: shorter than usual limits of collective operations.
_WINDOW = 10
# Difference of SM activity or of power (over power at work) that sets a waiting GPU apart.
UNLIKE = 0.1
_SPREADS = 4.0  # and this many times the largest difference among the others
_KNOWN_SHARE = 0.75  # of the GPUs at work are measured when work stops, or the finding is less sure
_LIKELY, _NONE = "Likely culprit:", "No culprit can be named:"
_CONSEQUENCE = frozenset({45})  # XID of cleaning up after another failure: no sign of who failed
_LESS: Mapping[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}


@dataclass(frozen=True, slots=True)
class Culprit:
    """The likely culprit of a hang, or why none can be named.

    `node`, `gpu`, `mig`: the GPU; `gpu` None: the whole node; `node` None: none can be named.
    `sentence`: the evidence, or the reason. `evidence`: its numbers, names as in finding.EVIDENCE.
    """

    sentence: str
    node: str | None = None
    gpu: int | None = None
    mig: int | None = None
    pattern: Pattern | None = None
    confidence: Confidence | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def named(self) -> bool:
        """Whether a culprit is named."""
        return self.node is not None

    @property
    def line(self) -> str:
        """The sentence, with the confidence of a culprit that is named."""
        return (
            f"{self.sentence[:-1]}; {self.confidence} confidence." if self.named else self.sentence
        )


def none_named(reason: str) -> Culprit:
    """Return that none can be named.

    >>> none_named("it had one GPU").sentence
    'No culprit can be named: it had one GPU.'
    """
    return Culprit(f"{_NONE} {reason}.")


def _is_hang(finding: Finding) -> bool:
    """Whether a reported finding is of a hang."""
    check = check_of(finding.code) if finding.reported else None
    return check is not None and check.family == "hang"


def hang_culprit(
    findings: Iterable[Finding], gpus: pl.DataFrame, minutes: pl.DataFrame, held: float | None
) -> Culprit | None:
    """Return the likely culprit of a hang on several GPUs; None for other jobs.

    See find_culprit.
    """
    hung = any(map(_is_hang, findings))
    return (
        find_culprit(gpus, minutes, held=held) if hung and max(gpus.height, held or 0) > 1 else None
    )


def with_culprit(finding: Finding, culprit: Culprit | None) -> Finding:
    """Return the finding of a hang, with sentence and numbers of a named culprit.

    A finding that has them already is unchanged.
    """
    known = culprit is None or not culprit.named or _LIKELY in finding.sentence
    if culprit is None or known or not _is_hang(finding):
        return finding
    sentence, evidence = (
        f"{finding.sentence} {culprit.line}",
        {**finding.evidence, **culprit.evidence},
    )
    return msgspec.structs.replace(finding, sentence=sentence, evidence=evidence)


def find_culprit(
    gpus: pl.DataFrame, minutes: pl.DataFrame, *, held: float | None = None
) -> Culprit:
    """Return the likely culprit of one hung job.

    `gpus`: its rows of job_gpus; `minutes`: of job_minutes, one row per (GPU, minute), null where
    not measured. `held`: GPUs that it held, None where not known: those without any sample are no
    evidence of anything.
    """
    units = gpus.sort(*UNIT, nulls_last=False).select(*UNIT).rows()
    if max(len(units), held or 0) < 2:
        return none_named("it had one GPU")
    if len(units) < 2:
        return none_named("samples of fewer than two of its GPUs are recorded")
    if minutes.is_empty():
        return none_named("no minutes of its GPUs are stored")
    series = GpuSeries.of(units, minutes)
    if series is None:
        return none_named(
            "arithmetic and memory traffic are not recorded, so work and waiting look alike"
        )
    found = _Stop.of(series)
    culprit = _none_stopped(series) if found is None else _decide(found)
    faults = _faulty(gpus, units)
    culprit = _with_faults(culprit, faults, series, hung=found is not None)
    unseen = (held or 0) > len(units)
    return (
        _less_sure(culprit)
        if culprit.named and (unseen or (found and found.known < _KNOWN_SHARE))
        else culprit
    )


def _less_sure(culprit: Culprit) -> Culprit:
    assert culprit.confidence is not None
    return replace(culprit, confidence=_LESS[culprit.confidence])


@dataclass(frozen=True, slots=True)
class _Stop:
    """How the GPUs that took part stopped, and what they did then.

    `begin`: the minute from which on all but at most one do no work; `working`: the one that worked
    on. `end`: of the window that is compared. `kinds`: {place: POLLING, IDLE, WORKING, UNCLEAR;
    UNMEASURED} in the window.
    """

    series: GpuSeries
    places: NDArray[np.int64]
    begin: int
    end: int
    working: int | None
    kinds: Mapping[int, int]

    @classmethod
    def of(cls, series: GpuSeries) -> _Stop | None:
        """None where fewer than two GPUs worked, or work went on to the end."""
        places = series.worked
        if len(places) < 2:
            return None
        stops = np.sort(series.stop[places])
        window = max(_WINDOW, 4 * series.gap())
        working = (
            int(places[np.argmax(series.stop[places])]) if stops[-1] - stops[-2] >= window else None
        )
        begin = int(stops[-2] if working is not None else stops[-1])
        if series.length - begin < max(LEAST_MINUTES, 3 * series.gap()):
            return None
        end = min(series.length, begin + 1 + window)
        # the minute in which work stopped is of both: the one after it shows what came then
        kinds = {
            place: _kind(shares)
            for place, shares in series.shares(
                places, min(begin + 1, series.length - 1), end
            ).items()
        }
        return cls(series, places, begin, end, working, kinds)

    def which(self, *kinds: int) -> list[int]:
        """Places of the GPUs of some kinds."""
        return [place for place, kind in self.kinds.items() if kind in kinds]

    @property
    def known(self) -> float:
        """Share of participating GPUs that were measured in the window."""
        return 1 - len(self.which(UNMEASURED)) / len(self.kinds)

    @property
    def tolerance(self) -> int:
        """Minutes within which stops are of the same time."""
        return SAME_TIME + self.series.gap() - 1


def _kind(shares: tuple[float, Mapping[int, float]]) -> int:
    measured, kinds = shares
    if measured < ENOUGH:
        return UNMEASURED
    return next((kind for kind, share in kinds.items() if share >= MOSTLY), UNCLEAR)


def _none_stopped(series: GpuSeries) -> Culprit:
    if len(series.worked) < 2:
        worked = len(series.worked)
        return none_named(
            f"{worked or 'none'} of its {len(series.units)} GPUs took part in the work"
        )
    return none_named("two or more of its GPUs worked until its end, or until shortly before")


def _decide(stop: _Stop) -> Culprit:
    """The first pattern that sets one GPU, or all GPUs of one node, apart."""
    for pattern in (
        _works_on,
        _reports_nothing,
        _idle_among_polling,
        _stopped_first,
        _other_kernel,
    ):
        found = next(pattern(stop), None)
        if found is not None:
            return found
    return _none_apart(stop)


def _works_on(stop: _Stop) -> Iterator[Culprit]:
    """One GPU works while all others poll."""
    if stop.working is None:
        return
    others = [place for place in stop.kinds if place != stop.working]
    polling = [place for place in others if stop.kinds[place] == POLLING]
    if len(others) < 2 and stop.kinds[others[0]] == IDLE:
        yield none_named(
            f"of two GPUs {stop.series.label(stop.working)} worked on, and the other did not "
            "wait by polling"
        )
    elif (
        stop.kinds[stop.working] != WORKING
        or len(polling) < len(others) - len(stop.which(UNMEASURED))
        or not polling
    ):
        waiting = f"{len(polling)} of the {len(others)} others waited by polling"
        yield none_named(
            f"{stop.series.label(stop.working)} worked on after the others, of which no more "
            f"than {waiting}"
        )
    elif _spread(stop, polling) > stop.tolerance:
        yield none_named(
            f"the others stopped one after the other, {_spread(stop, polling)} min apart"
        )
    else:
        did = f"worked on while {_waiting(stop, polling)}"
        yield _culprit(stop, [stop.working], "working", "medium", did, begin=stop.begin)


def _reports_nothing(stop: _Stop) -> Iterator[Culprit]:
    """One GPU, or one node, has had no sample since work stopped."""
    series, dark = stop.series, stop.which(UNMEASURED)
    silent = [
        place
        for place in dark
        if not (series.state[place, stop.begin + stop.tolerance :] != UNMEASURED).any()
    ]
    if not silent or len(silent) < len(dark):
        return
    others = [place for place in stop.kinds if place not in dark]
    if not others or any(stop.kinds[place] not in (POLLING, IDLE) for place in others):
        return
    last = int(max(series.stop[silent]))
    node = series.units[silent[0]][0]
    alone = len(silent) == 1 and series.of_node(node) != set(silent)
    before = stop.tolerance + (_LOST_BEFORE if alone else 0)  # its last samples may be lost
    if any(not -stop.tolerance <= int(series.stop[place]) - last <= before for place in others):
        return
    idle = [place for place in others if stop.kinds[place] == IDLE]
    if 0 < len(idle) < len(others):
        return
    waiting = _waiting(stop, [place for place in others if stop.kinds[place] == POLLING])
    what = waiting or f"the {plural(len(others), 'other GPU')} did nothing"
    did = f"reported nothing from {_after(last)} on, when work stopped, while {what}"
    if alone:
        yield _culprit(stop, silent, "reports_nothing", "medium", did, begin=last)
    elif set(silent) == series.of_node(node) & set(
        stop.kinds
    ):  # samples may be lost between node and lake, too
        yield _culprit(stop, silent, "reports_nothing", "low", did, begin=last)


def _idle_among_polling(stop: _Stop) -> Iterator[Culprit]:
    """One GPU, or one node, is idle while all others poll."""
    idle, polling = stop.which(IDLE), stop.which(POLLING)
    if not idle or len(polling) < len(idle) or stop.which(UNCLEAR, WORKING):
        return
    if not _one_place(stop, idle):
        yield none_named(
            f"{plural(len(idle), 'GPU')} were idle while {_waiting(stop, polling)}, not one"
        )
        return
    last = int(max(stop.series.stop[idle]))
    if last > min(stop.series.quiet[polling]) + stop.tolerance:
        yield none_named(f"{_names(stop, idle)} stopped after the others had begun to wait")
        return
    did = f"was idle from {_after(last)} on while {_waiting(stop, polling)}"
    sure: Confidence = "high" if not stop.which(UNMEASURED) else "medium"
    yield _culprit(stop, idle, "idle", sure, did, begin=last)


def _stopped_first(stop: _Stop) -> Iterator[Culprit]:
    """One GPU stopped some minutes before all others, which stopped together.

    Of two GPUs the one that ends first may as well have had less to do.
    """
    series, places = stop.series, stop.places
    if len(places) < 3:
        return
    order = places[np.argsort(series.quiet[places], kind="stable")]
    first, others = int(order[0]), order[1:]
    lag = int(min(series.stop[others])) - int(series.quiet[first])
    if lag <= stop.tolerance:
        return
    if stop.working is not None or lag > LONGEST_LAG + stop.tolerance:
        yield none_named(
            f"{series.label(first)} stopped {text(lag * 60, 's')} before the others, which "
            "worked on"
        )
        return
    if _spread(stop, others.tolist()) > stop.tolerance:
        yield none_named("its GPUs stopped one after the other")
        return
    if lag <= 1.5 * longest_pause(series.state[first, : series.stop[first]]):
        yield none_named("pauses as long as between its GPUs' stops were usual before")
        return
    begin = int(series.stop[first])
    did = (
        f"stopped {_after(begin)}, {lag} min before the {plural(len(others), 'other GPU')}, "
        f"which stopped within {max(1, _spread(stop, others.tolist()))} min of each other"
    )
    yield _culprit(stop, [first], "stopped_first", "medium", did, begin=begin, lag=lag)


def _other_kernel(stop: _Stop) -> Iterator[Culprit]:
    """All GPUs poll, but SM activity or power of one differs from all others.

    Power has to be unlike in watts and as a share of the GPU's power at work: some GPUs always need
    more, or do less.
    """
    series, polling = stop.series, stop.which(POLLING)
    if len(polling) < 3 or len(polling) < len(stop.kinds):
        return
    begin, end = stop.begin + 1, series.length
    sm = [series.mean(series.sm, place, begin, end) for place in polling]
    power = [series.mean(series.power, place, begin, end) for place in polling]
    at_work = [series.power_at_work(place) for place in polling]
    typical = _median(at_work)
    of_own = list(map(_ratio, power, at_work))
    of_typical = [_ratio(watts, typical) for watts in power]
    for what, levels in (("SM activity", (sm,)), ("power, of that at work,", (of_own, of_typical))):
        unlike = {_set_apart(values) for values in levels}
        index = unlike.pop()
        if index is None or unlike:
            continue
        values = [value for value in levels[0] if value is not None]
        rest = np.delete(np.array(values), index)
        others = [place for place in polling if place != polling[index]]
        did = (
            f"had {what} {text(values[index], 'fraction')} while "
            f"{_waiting(stop, others, other=f'at {_range(rest)}')}"
        )
        yield _culprit(stop, [polling[index]], "kernel", "medium", did, begin=stop.begin)
        return


def _ratio(value: float | None, whole: float | None) -> float | None:
    """Return a share; None where a part is not known or zero."""
    return value / whole if value and whole else None


def _set_apart(levels: Sequence[float | None]) -> int | None:
    """Return the index of the only level unlike all others; None without one, or if one is missing.

    >>> _set_apart([0.05, 0.06, 0.6]), _set_apart([0.05, 0.4, 0.6]), _set_apart([0.05, None, 0.6])
    (2, None, None)
    """
    if any(level is None for level in levels):
        return None
    known = np.array(levels, np.float64)
    apart = np.abs(known - np.median(known))
    at = int(np.argmax(apart))
    rest = np.delete(known, at)
    widest = float(np.abs(rest - np.median(rest)).max())
    return at if apart[at] >= max(UNLIKE, _SPREADS * widest) else None


def _none_apart(stop: _Stop) -> Culprit:
    dark = stop.which(UNMEASURED)
    if dark:
        return none_named(f"{_names(stop, dark)} had no samples when work stopped")
    counts = {kind: len(stop.which(kind)) for kind in (POLLING, IDLE, UNCLEAR)}
    if max(counts.values()) == len(stop.kinds) and counts[UNCLEAR] == 0:
        did = "waited by polling" if counts[POLLING] else "were idle"
        return none_named(
            f"all {len(stop.kinds)} GPUs stopped within {_spread(stop, list(stop.kinds)) + 1} "
            f"min and {did}"
        )
    return none_named(
        f"of {len(stop.kinds)} GPUs {counts[POLLING]} waited by polling, {counts[IDLE]} were idle, "
        f"{counts[UNCLEAR]} did neither"
    )


def _culprit(
    stop: _Stop,
    places: Sequence[int],
    pattern: Pattern,
    sure: Confidence,
    did: str,
    *,
    begin: int,
    lag: int | None = None,
) -> Culprit:
    """The GPU, or of several the node they all are on."""
    series, first = stop.series, places[0]
    node, gpu, mig = series.units[first]
    whole = len(places) > 1
    others = [place for place in stop.kinds if place not in places]
    end = series.length if pattern not in ("idle", "working") else stop.end
    then = min(stop.begin + 1, end - 1)
    known: dict[str, float | None] = {
        "culprit_gpu": None if whole else float(gpu),
        "culprit_stopped_after_s": None if pattern == "working" else begin * 60.0,
        "culprit_before_others_s": None if lag is None else lag * 60.0,
        "culprit_gpu_util": series.mean(series.util, first, then, end),
        "culprit_power_w": series.mean(series.power, first, then, end),
        "others_gpu_util": _median(series.mean(series.util, place, then, end) for place in others),
        "others_power_w": _median(series.mean(series.power, place, then, end) for place in others),
    }
    util, power, others_util, others_power = list(known.values())[3:]
    behind = ""
    if util is not None and others_util is not None:
        against = f"{text(others_util, 'fraction')} and {text(others_power, 'W')} of the others"
        behind = f" (utilisation {text(util, 'fraction')} and {text(power, 'W')}, {against})"
    name = series.label(first)
    if whole:
        name = f"all {len(places)} GPUs of {node}"
        did = did.replace("was idle", "were idle", 1)
    return Culprit(
        f"{_LIKELY} {name}, which {did}{behind}.",
        node,
        None if whole else gpu,
        None if whole else mig,
        pattern,
        sure,
        {name: value for name, value in known.items() if value is not None},
    )


def _with_faults(
    culprit: Culprit, faulty: Mapping[int, int], series: GpuSeries, *, hung: bool
) -> Culprit:
    """The same with driver reports of single GPUs: `faulty` {index: number of XID events}."""
    if not faulty or not hung:
        return culprit
    places = [place for place in faulty if _is(culprit, series.units[place])]
    if places:
        events = faulty[places[0]]
        seen = f"{culprit.sentence[:-1]}, and had {plural(events, 'XID event')}."
        return replace(
            culprit,
            sentence=seen,
            confidence="high",
            evidence={**culprit.evidence, "xid_events": float(events)},
        )
    if culprit.named or len(faulty) > 1:
        return _less_sure(culprit) if culprit.named else culprit
    place, events = next(iter(faulty.items()))
    node, gpu, mig = series.units[place]
    seen = (
        f"{_LIKELY} {series.label(place)}, the only one of {len(series.units)} GPUs with "
        f"XID events ({events})."
    )
    return Culprit(
        seen,
        node,
        gpu,
        mig,
        "xid",
        "medium",
        {"culprit_gpu": float(gpu), "xid_events": float(events)},
    )


def _is(culprit: Culprit, unit: tuple[str, int, int | None]) -> bool:
    whole_node = culprit.gpu is None
    return culprit.node == unit[0] and (whole_node or (culprit.gpu, culprit.mig) == unit[1:])


def _faulty(gpus: pl.DataFrame, units: Sequence[tuple[str, int, int | None]]) -> dict[int, int]:
    """Return {index: XID events} of GPUs with errors that are not consequences of other errors."""
    if "xid_events" not in gpus.columns:
        return {}
    rows = {tuple(row[name] for name in UNIT): row for row in gpus.iter_rows(named=True)}
    events = {place: number(rows[unit], "xid_events") for place, unit in enumerate(units)}
    codes = {place: number(rows[unit], "xid_event_max") for place, unit in enumerate(units)}
    return {
        place: int(count)
        for place, count in events.items()
        if count and codes[place] not in _CONSEQUENCE
    }


def _one_place(stop: _Stop, places: Sequence[int]) -> bool:
    """Whether it is one GPU, or all that a job of several nodes used of one."""
    nodes = {stop.series.units[place][0] for place in places}
    whole = len(nodes) == 1 and set(places) == stop.series.of_node(next(iter(nodes))) & set(
        stop.kinds
    )
    return len(places) == 1 or (whole and len(places) < len(stop.kinds))


def _names(stop: _Stop, places: Sequence[int]) -> str:
    return stop.series.label(places[0]) if len(places) == 1 else plural(len(places), "GPU")


def _waiting(stop: _Stop, polling: Sequence[int], *, other: str = "") -> str:
    if not polling:
        return ""
    dark = len(stop.which(UNMEASURED))
    measured = " measured" if dark else ""
    return (
        f"the {plural(len(polling), f'other{measured} GPU')} waited by "
        f"polling{f' {other}' if other else ''}"
    )


def _after(minute: int) -> str:
    return f"{text(minute * 60, 's')} after the start"


def _spread(stop: _Stop, places: Sequence[int]) -> int:
    """Minimum spread in minutes of the GPUs' stops, whatever happened in unmeasured minutes."""
    some = list(places)
    return max(0, int(stop.series.stop[some].max() - stop.series.quiet[some].min()))


def _range(values: NDArray[np.float64]) -> str:
    low, high = (text(float(value), "fraction") for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
