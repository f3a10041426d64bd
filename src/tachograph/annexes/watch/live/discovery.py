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
from tachograph.sources.metrics import short_node

if TYPE_CHECKING:
    from tachograph.lake.places import ClusterNames

# Within which an exporter of this node accepts a connection, else it counts as absent.
QUICK_S: Final = 0.5
_ANSWER_S: Final = 2.0  # within which it answers
_EXPORTER: Final = "dcgm-exporter"
# counters that decide the workload class of a GPU; sources with the first two are preferred
ACTIVITY: Final = ("sm_active", "tensor_active")
DECIDING: Final = (
    *ACTIVITY,
    "dram_active",
    "gr_engine_active",
    "fp64_active",
    "pcie_rx_bytes_per_s",
)
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


def _nvml(configuration: Configuration, wanted: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources import nvml

    return nvml.connect(configuration)


def _exporter_here(configuration: Configuration, wanted: SourceRequest) -> LiveSource:
    """The exporter of this node, with the names of metrics and labels of the configuration."""
    import msgspec

    from tachograph.annexes.watch.live.sources.feeds import connect_node_exporter, node_exporter

    settings = node_exporter(configuration)
    _probe(settings.urls[0])
    quick = msgspec.structs.replace(settings, timeout_s=_ANSWER_S)
    return connect_node_exporter(quick, names=wanted.names)


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


def _exporters(configuration: Configuration, wanted: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources.feeds import connect_exporters

    try:
        return connect_exporters(configuration, urls=wanted.urls, names=wanted.names)
    except ConfigError as problem:
        if not wanted.urls or _EXPORTER in _configured(configuration, OPENERS.beyond):
            raise
        raise UsageError(f"--url {', '.join(wanted.urls)}: {problem.what}", do=problem.do) from None


def _dmon(configuration: Configuration, wanted: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources import dmon

    return dmon.connect(configuration, interval_s=wanted.interval_s)


def _pm_sampling(configuration: Configuration, wanted: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources import pm_sampling

    return pm_sampling.connect(configuration)


def _prometheus(configuration: Configuration, wanted: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources.feeds import connect_server

    if len(wanted.urls) > 1:
        raise UsageError("several Prometheus addresses", do="give one --url")
    url = wanted.urls[0] if wanted.urls else None
    return connect_server(configuration, url=url, names=wanted.names)


def _recording(configuration: Configuration, wanted: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources import recording

    return recording.connect(configuration, path=wanted.recording or "", job=wanted.job)


def _simulated(configuration: Configuration, wanted: SourceRequest) -> LiveSource:
    from tachograph.annexes.watch.live.sources.simulated import SimulatedSource

    if not wanted.simulate or wanted.simulate < 0:
        raise UsageError(
            f"--simulate {wanted.simulate}: at least one GPU is needed", do="write --simulate 8"
        )
    return SimulatedSource(wanted.simulate, faults=True)


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
    wanted: SourceRequest,
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
    own = job_environment(environment)
    found = _find(configuration, wanted, own, openers)
    source = found.source

    def close() -> None:
        source.close()  # which may be a wrapper by then

    with closed_on_failure(close):
        chosen = _selector_of(found, wanted, own, environment)
        pick = chosen.pick
        # indices of NVML inside a job count the GPUs visible in its cgroup, those of Slurm do not
        if chosen.of_others and found.real and not (own and source.about.name == "nvml"):
            poller = poll or allocation_poller(configuration)
            if poller is not None:
                source = AllocatedSource(source, poller, names=wanted.names)
        if chosen.job is not None and isinstance(source, AllocatedSource):
            source.wait()
            pick = select_job(chosen.job, source.names)
        pick = _with_remark(pick, found.remark)
        shown = SelectedSource(source, pick)
        shown.poll()
    return shown


def _find(
    configuration: Configuration,
    wanted: SourceRequest,
    own: JobEnvironment | None,
    openers: SourceOpeners,
) -> _FoundSource:
    if wanted.simulate is not None:
        return _FoundSource(openers.simulated(configuration, wanted), real=False)
    if wanted.recording is not None:
        return _FoundSource(openers.recording(configuration, wanted), real=False)
    name = wanted.source or (_EXPORTER if wanted.urls else "")
    if name:
        return _named(name, configuration, wanted, openers)
    fleet = _configured(configuration, openers.beyond)
    beyond = _is_beyond_node(wanted, own)
    if fleet and beyond:
        return _FoundSource(_first(fleet, configuration, wanted, openers.beyond))
    found = _of_this_node(configuration, wanted, openers, fleet, beyond=beyond)
    if wanted.job is not None and beyond:
        return replace(
            found, remark="this node only: [[sources]] names no Prometheus and no exporters"
        )
    return found


def _named(
    name: str, configuration: Configuration, wanted: SourceRequest, openers: SourceOpeners
) -> _FoundSource:
    """The requested source; its errors are reported as they are."""
    if name not in NAMES:
        raise UsageError(f"--source: unknown source {name!r}", do=f"use one of: {', '.join(NAMES)}")
    if wanted.urls and name not in openers.beyond:
        raise UsageError(
            f"--url does not apply to {name}", do=f"use it with {' or '.join(openers.beyond)}"
        )
    of_fleet = wanted.urls or (
        (wanted.everything or wanted.job) and name in _configured(configuration, openers.beyond)
    )
    of_node = {**openers.here, **openers.named}
    if name in of_node and not of_fleet:
        return _FoundSource(of_node[name](configuration, wanted), here=True)
    return _FoundSource(openers.beyond[name](configuration, wanted))


def _configured(configuration: Configuration, beyond: Mapping[str, SourceOpener]) -> list[str]:
    """Sources of `beyond` in [[sources]], best first."""
    named = {str(raw.get("source")) for raw in configuration.sources}
    return [name for name in beyond if name in named]


def _is_beyond_node(wanted: SourceRequest, own: JobEnvironment | None) -> bool:
    """Whether GPUs of other nodes are requested."""
    if wanted.gpus is not None:
        here = {short_node(socket.gethostname()), own.node if own else None}
        return any(
            term.node is not None and short_node(term.node) not in here
            for term in gpu_terms(wanted.gpus)
        )
    if wanted.job is not None:
        return not (_is_own(wanted.job, own) and own is not None and own.nodes == 1)
    return wanted.everything


def _is_own(job: str, own: JobEnvironment | None) -> bool:
    return own is not None and job in (own.job, own.display_job)


def _first(
    names: Sequence[str],
    configuration: Configuration,
    wanted: SourceRequest,
    openers: Mapping[str, SourceOpener],
) -> LiveSource:
    """The first source of a fleet that answers."""
    failed: dict[str, TachographError] = {}
    for name in names:
        try:
            return openers[name](configuration, wanted)
        except ConfigError:
            raise
        except TachographError as problem:
            failed[name] = problem
    raise _nothing(failed, "check them with `tachograph collect --check`")


def _of_this_node(
    configuration: Configuration,
    wanted: SourceRequest,
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
            source = opener(configuration, wanted)
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
        _first(fleet, configuration, wanted, openers.beyond),
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
    found: _FoundSource,
    wanted: SourceRequest,
    own: JobEnvironment | None,
    environment: Mapping[str, str],
) -> _SelectorChoice:
    if wanted.gpus is not None:
        return _SelectorChoice(select_named(wanted.gpus))
    if wanted.everything or not found.real or (own is None and wanted.job is None):
        if wanted.job:
            return _SelectorChoice(select_job(wanted.job), wanted.job)
        return _SelectorChoice(_select_all(own if found.here else None))
    is_own = wanted.job is None or _is_own(wanted.job, own)
    if own is not None and is_own and (found.here or own.job is None):
        host = short_node(environment.get("SLURMD_NODENAME") or socket.gethostname())
        return _SelectorChoice(select_own(own, host=host), of_others=False)
    job = wanted.job or (own.job if own else None) or ""
    return _SelectorChoice(select_job(job), job)


def _select_all(own: JobEnvironment | None) -> GpuSelector:
    """Selection of all; if a cgroup hides others, all are own GPUs."""

    def pick(snapshot: Snapshot, about: SourceInfo) -> GpuSelection:
        rows = tuple(range(len(snapshot.gpus)))
        if own is not None and own.job and about.name == "nvml" and confined(snapshot, own):
            return GpuSelection(
                rows,
                f"{plural(len(snapshot.gpus), 'GPU')} of {own.name} (its cgroup hides others)",
                own.allocation,
            )
        return GpuSelection(rows, "all shown")

    return pick


def _with_remark(pick: GpuSelector, remark: str) -> GpuSelector:
    """The same choice, with a further remark."""
    if not remark:
        return pick

    def picked(snapshot: Snapshot, about: SourceInfo) -> GpuSelection:
        found = pick(snapshot, about)
        return GpuSelection(found.rows, f"{found.sentence}; {remark}", found.allocation)

    return picked
