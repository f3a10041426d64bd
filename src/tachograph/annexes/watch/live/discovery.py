"""The telemetry source that is used, and which of its GPUs are shown.

Of this node, in this order: NVML (new values every second, processes, no load on others),
dcgm-exporter, dcgmi. The first that reports SM and tensor activity is used; without one, the source
with most decisive counters: NVML reports little on GPUs before Hopper, dcgm-exporter the counters
of its CSV file. Other nodes: Prometheus, then the exporters under [[sources]]. A new source needs
one file and one line here.
"""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tachograph.annexes.watch.live.allocations import (
    AllocatedSource,
    JobEnvironment,
    SlurmAllocations,
    allocation_poller,
    confined,
    job_environment,
    select_own,
)
from tachograph.annexes.watch.live.selection import (
    GpuSelection,
    GpuSelector,
    SelectedSource,
    gpu_terms,
    select_job,
    select_named,
)
from tachograph.annexes.watch.live.snapshot import (
    LiveSource,
    Snapshot,
    SourceInfo,
    closed_on_failure,
)
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import (
    BREAK,
    ConfigError,
    InputError,
    NotFoundError,
    TachographError,
    UsageError,
)
from tachograph.catalog.units import plural
from tachograph.judge.workload.classes import DECIDING
from tachograph.sources.metrics import short_node

if TYPE_CHECKING:
    from tachograph.lake.places import ClusterNames

# Within which an exporter of this node accepts a connection, else it counts as absent.
QUICK_S: Final = 0.5
_ANSWER_S: Final = 2.0  # within which it answers
_EXPORTER: Final = "dcgm-exporter"
# a source with these is preferred
ACTIVITY: Final = ("sm_active", "tensor_active")
_NAME_A_SOURCE = "run it on a node with GPUs, name an exporter with --url, or try --simulate 8"
_NAME_A_FLEET = (
    "for other nodes name a Prometheus or exporters under [[sources]] in tachograph.toml, or "
    "exporters with --url; "
    "for this node run it where GPUs are; or try --simulate 8"
)


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """The request. None, empty: not requested. interval_s: between polls.

    names: of clusters, as the lake beside which the source is polled knows them.
    """

    source: str | None = None
    urls: tuple[str, ...] = ()
    gpus: str | None = None
    job: str | None = None
    everything: bool = False
    recording: str | None = None
    simulate: int | None = None
    interval_s: float = 1.0
    names: ClusterNames | None = None


def request_of(arguments: Namespace, *, interval_s: float) -> SourceRequest:
    """Return the source named by `watch` and `record` options, with its own defaults."""
    return SourceRequest(
        source=arguments.source,
        urls=tuple(arguments.url),
        gpus=arguments.gpus,
        simulate=arguments.simulate,
        interval_s=interval_s,
    )


SourceOpener = Callable[[Configuration, SourceRequest], LiveSource]
AllocationPoller = Callable[[], SlurmAllocations]


def _nvml(configuration: Configuration, request: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources import nvml

    return nvml.connect(configuration)


def _exporter_here(configuration: Configuration, request: SourceRequest) -> LiveSource:
    """The exporter of this node, with the names of metrics and labels of the configuration."""
    import msgspec

    from tachograph.annexes.watch.live.sources.feeds import connect_node_exporter, node_exporter

    settings = node_exporter(configuration)
    _probe(settings.urls[0])
    quick = msgspec.structs.replace(settings, timeout_s=_ANSWER_S)
    return connect_node_exporter(quick, names=request.names)


def _probe(url: str) -> None:
    """Check that the port accepts connections. Errors: InputError."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), QUICK_S).close()
    except (OSError, ValueError) as problem:
        reason = (
            problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        )
        raise InputError(
            reason.lower(), where=url, do="is dcgm-exporter running? name it with --url"
        ) from None


def _exporters(configuration: Configuration, request: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources.feeds import connect_exporters

    try:
        return connect_exporters(configuration, urls=request.urls, names=request.names)
    except ConfigError as problem:
        if not request.urls or _EXPORTER in _configured(configuration, OPENERS.beyond):
            raise
        raise UsageError(
            f"--url {', '.join(request.urls)}: {problem.what}", do=problem.do
        ) from None


def _dmon(configuration: Configuration, request: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources import dmon

    return dmon.connect(configuration, interval_s=request.interval_s)


def _pm_sampling(configuration: Configuration, request: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources import pm_sampling

    return pm_sampling.connect(configuration)


def _prometheus(configuration: Configuration, request: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources.feeds import connect_server

    if len(request.urls) > 1:
        raise UsageError("several Prometheus addresses", do="give one --url")
    url = request.urls[0] if request.urls else None
    return connect_server(configuration, url=url, names=request.names)


def _recording(configuration: Configuration, request: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources import recording

    return recording.connect(configuration, path=request.recording or "", job=request.job)


def _simulated(configuration: Configuration, request: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources.simulated import SimulatedSource

    if not request.simulate or request.simulate < 0:
        raise UsageError(
            f"--simulate {request.simulate}: at least one GPU is needed", do="write --simulate 8"
        )
    return SimulatedSource(request.simulate, faults=True)


@dataclass(frozen=True, slots=True)
class SourceOpeners:
    """Openers of sources by name, replaced in tests. here: of this node, best first.

    named: of this node, used only by name, as they take what others may need.
    """

    here: Mapping[str, SourceOpener]
    beyond: Mapping[str, SourceOpener]
    named: Mapping[str, SourceOpener] = field(default_factory=lambda: {"pm-sampling": _pm_sampling})
    recording: SourceOpener = _recording
    simulated: SourceOpener = _simulated


OPENERS: Final = SourceOpeners(
    MappingProxyType({"nvml": _nvml, _EXPORTER: _exporter_here, "dmon": _dmon}),
    MappingProxyType({"prometheus": _prometheus, _EXPORTER: _exporters}),
)
NAMES: Final = ("nvml", _EXPORTER, "dmon", "prometheus", "pm-sampling")


@dataclass(frozen=True, slots=True)
class _FoundSource:
    """A source. real: GPUs exist now, so Slurm applies; here: reports this node alone."""

    source: LiveSource
    here: bool = False
    real: bool = True
    remark: str = ""  # on the choice


def choose_source(
    configuration: Configuration,
    request: SourceRequest,
    *,
    environment: Mapping[str, str] = os.environ,
    openers: SourceOpeners = OPENERS,
    poll: AllocationPoller | None = None,
) -> SelectedSource:
    """Return the requested or the best source, polled once, with its GPUs selected.

    Its `about`: source, shown GPUs, unsupported counters. poll: returns allocations; None: as
    configured. Errors: UsageError, ConfigError for invalid options; NotFoundError where nothing
    answers, naming what was tried, where a GPU or a job is not found, naming those present;
    InputError for a requested source that fails.
    """
    own_job = job_environment(environment)
    opened = _find(configuration, request, own_job, openers)
    source = opened.source

    def close() -> None:
        source.close()  # which may be a wrapper by then

    with closed_on_failure(close):
        choice = _selector_of(opened, request, own_job, environment)
        pick = choice.pick
        # indices of NVML inside a job count the GPUs visible in its cgroup, those of Slurm do not
        if choice.of_others and opened.real and not (own_job and source.about.name == "nvml"):
            poller = poll or allocation_poller(configuration)
            if poller is not None:
                source = AllocatedSource(source, poller, names=request.names)
        if choice.job is not None and isinstance(source, AllocatedSource):
            source.wait()
            pick = select_job(choice.job, source.names)
        pick = _with_remark(pick, opened.remark)
        shown = SelectedSource(source, pick)
        shown.poll()
    return shown


def _find(
    configuration: Configuration,
    request: SourceRequest,
    own_job: JobEnvironment | None,
    openers: SourceOpeners,
) -> _FoundSource:
    if request.simulate is not None:
        return _FoundSource(openers.simulated(configuration, request), real=False)
    if request.recording is not None:
        return _FoundSource(openers.recording(configuration, request), real=False)
    name = request.source or (_EXPORTER if request.urls else "")
    if name:
        return _named(name, configuration, request, openers)
    fleet = _configured(configuration, openers.beyond)
    beyond = _is_beyond_node(request, own_job)
    if fleet and beyond:
        return _FoundSource(_first(fleet, configuration, request, openers.beyond))
    opened = _of_this_node(configuration, request, openers, fleet, beyond=beyond)
    if request.job is not None and beyond:
        return replace(
            opened, remark="this node only: [[sources]] names no Prometheus and no exporters"
        )
    return opened


def _named(
    name: str, configuration: Configuration, request: SourceRequest, openers: SourceOpeners
) -> _FoundSource:
    """The requested source; its errors are reported as they are."""
    if name not in NAMES:
        raise UsageError(f"--source: unknown source {name!r}", do=f"use one of: {', '.join(NAMES)}")
    if request.urls and name not in openers.beyond:
        raise UsageError(
            f"--url does not apply to {name}", do=f"use it with {' or '.join(openers.beyond)}"
        )
    of_fleet = request.urls or (
        (request.everything or request.job) and name in _configured(configuration, openers.beyond)
    )
    of_node = {**openers.here, **openers.named}
    if name in of_node and not of_fleet:
        return _FoundSource(of_node[name](configuration, request), here=True)
    return _FoundSource(openers.beyond[name](configuration, request))


def _configured(configuration: Configuration, beyond: Mapping[str, SourceOpener]) -> list[str]:
    """Sources of `beyond` in [[sources]], best first."""
    named = {str(raw.get("source")) for raw in configuration.sources}
    return [name for name in beyond if name in named]


def _is_beyond_node(request: SourceRequest, own_job: JobEnvironment | None) -> bool:
    """Whether GPUs of other nodes are requested."""
    if request.gpus is not None:
        here = {short_node(socket.gethostname()), own_job.node if own_job else None}
        return any(
            term.node is not None and short_node(term.node) not in here
            for term in gpu_terms(request.gpus)
        )
    if request.job is not None:
        return not (_is_own(request.job, own_job) and own_job is not None and own_job.nodes == 1)
    return request.everything


def _is_own(job: str, own_job: JobEnvironment | None) -> bool:
    return own_job is not None and job in (own_job.job, own_job.display_job)


def _first(
    names: Sequence[str],
    configuration: Configuration,
    request: SourceRequest,
    openers: Mapping[str, SourceOpener],
) -> LiveSource:
    """The first source of a fleet that answers."""
    failed: dict[str, TachographError] = {}
    for name in names:
        try:
            return openers[name](configuration, request)
        except ConfigError:
            raise
        except TachographError as problem:
            failed[name] = problem
    raise _nothing(failed, "check them with `tachograph collect --check`")


def _of_this_node(
    configuration: Configuration,
    request: SourceRequest,
    openers: SourceOpeners,
    fleet: Sequence[str],
    *,
    beyond: bool,
) -> _FoundSource:
    """Best source of this node, else the fleet. beyond: other nodes were requested, too."""
    failed: dict[str, TachographError] = {}
    best: LiveSource | None = None
    for name, opener in openers.here.items():
        try:
            source = opener(configuration, request)
        except ConfigError:
            raise
        except TachographError as problem:
            failed[name] = problem
            continue
        if best is None or _worth(source.about) > _worth(best.about):
            best, source = source, best or source
        if source is not best:
            source.close()
        if not set(ACTIVITY) & set(best.about.unsupported):
            break
    if best is not None:
        return _FoundSource(best, here=True)
    if not fleet:
        raise _nothing(failed, _NAME_A_FLEET if beyond else _NAME_A_SOURCE)
    return _FoundSource(
        _first(fleet, configuration, request, openers.beyond),
        remark="no GPU telemetry source on this node",
    )


def _worth(about: SourceInfo) -> tuple[int, int]:
    """Rank of a source by its unsupported counters: decisive ones, all."""
    return -len(set(DECIDING) & set(about.unsupported)), -len(about.unsupported)


def _nothing(failed: Mapping[str, TachographError], do: str) -> NotFoundError:
    """No source answers: a point for each that was tried."""
    tried = ""
    for name, failure in failed.items():
        where = f"{failure.where}: " if failure.where else ""
        tried += f"{BREAK}{name}: {where}{failure.what}"
    return NotFoundError(f"no GPU telemetry source found; tried:{tried}", do=do)


@dataclass(frozen=True, slots=True)
class _SelectorChoice:
    """Selection of GPUs. job: whose GPUs to find; of_others: include other holders' GPUs.

    Slurm is polled for these, but not to watch one's own job.
    """

    pick: GpuSelector
    job: str | None = None
    of_others: bool = True


def _selector_of(
    opened: _FoundSource,
    request: SourceRequest,
    own_job: JobEnvironment | None,
    environment: Mapping[str, str],
) -> _SelectorChoice:
    if request.gpus is not None:
        return _SelectorChoice(select_named(request.gpus))
    if request.everything or not opened.real or (own_job is None and request.job is None):
        if request.job:
            return _SelectorChoice(select_job(request.job), request.job)
        return _SelectorChoice(_select_all(own_job if opened.here else None))
    is_own = request.job is None or _is_own(request.job, own_job)
    if own_job is not None and is_own and (opened.here or own_job.job is None):
        host = short_node(environment.get("SLURMD_NODENAME") or socket.gethostname())
        return _SelectorChoice(select_own(own_job, host=host), of_others=False)
    job = request.job or (own_job.job if own_job else None) or ""
    return _SelectorChoice(select_job(job), job)


def _select_all(own_job: JobEnvironment | None) -> GpuSelector:
    """Selection of all; if a cgroup hides others, all are own GPUs."""

    def pick(snapshot: Snapshot, about: SourceInfo) -> GpuSelection:
        rows = tuple(range(len(snapshot.gpus)))
        if (
            own_job is not None
            and own_job.job
            and about.name == "nvml"
            and confined(snapshot, own_job)
        ):
            return GpuSelection(
                rows,
                f"{plural(len(snapshot.gpus), 'GPU')} of {own_job.name} (its cgroup hides others)",
                own_job.allocation,
            )
        return GpuSelection(rows, "all shown")

    return pick


def _with_remark(pick: GpuSelector, remark: str) -> GpuSelector:
    """The same choice, with a further remark."""
    if not remark:
        return pick

    def picked(snapshot: Snapshot, about: SourceInfo) -> GpuSelection:
        selection = pick(snapshot, about)
        return GpuSelection(selection.rows, f"{selection.sentence}; {remark}", selection.allocation)

    return picked
