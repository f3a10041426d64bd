"""Which source is taken: the requested one, else the one that reports most; errors list what was
tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from watching import FakeSource, node_of, snapshot_of

from tachograph.annexes.watch.live.allocations import SlurmAllocations
from tachograph.annexes.watch.live.discovery import SourceOpeners, SourceRequest, choose_source
from tachograph.annexes.watch.live.snapshot import GpuAllocation
from tachograph.catalog.config import Configuration
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.errors import (
    ConfigError,
    InputError,
    NotFoundError,
    TachographError,
    UsageError,
)

EVERY = COUNTER_NAMES
PLAIN = [
    name
    for name in COUNTER_NAMES
    if name not in ("sm_active", "tensor_active", "dram_active", "gr_engine_active", "xid")
]
CSV = [name for name in COUNTER_NAMES if name not in ("sm_active", "fp64_active")]
NO_FP16 = [name for name in COUNTER_NAMES if name not in ("sm_active", "fp16_active")]
NO_XID = [name for name in COUNTER_NAMES if name not in ("sm_active", "xid", "pcie_replays")]
HERE, FLEET = snapshot_of(node_of(4)), snapshot_of({**node_of(4), **node_of(4, node="n2")})
PROMETHEUS = Configuration(sources=({"source": "prometheus", "url": "http://p"},))
EXPORTERS = Configuration(sources=({"source": "dcgm-exporter", "url": "http://n1"},))
BOTH = Configuration(sources=(*EXPORTERS.sources, *PROMETHEUS.sources))


class Opened:
    """Openers of fakes: {name: its counters, or why it is not there}. Keeps what was opened."""

    def __init__(
        self, here: Mapping[str, object], beyond: Mapping[str, object] | None = None
    ) -> None:
        self.sources: dict[str, FakeSource] = {}
        self.tried: list[str] = []
        self.openers = SourceOpeners(
            {name: self._opener(name, name, what) for name, what in here.items()},
            {
                name: self._opener(name, f"fleet {name}", what)
                for name, what in (beyond or {}).items()
            },
            recording=self._opener("recording", "recording", EVERY),
            simulated=self._opener("simulated", "simulated", EVERY),
        )

    def _opener(
        self, name: str, key: str, what: object
    ) -> Callable[[Configuration, SourceRequest], FakeSource]:
        def opened(configuration: Configuration, wanted: SourceRequest) -> FakeSource:
            self.tried.append(key)
            if isinstance(what, TachographError):
                raise what
            assert isinstance(what, (list, tuple))
            snapshot = FLEET if key.startswith("fleet") else HERE
            self.sources[key] = FakeSource([snapshot], reported=what, name=name)
            return self.sources[key]

        return opened

    def choose(
        self,
        wanted: SourceRequest | None = None,
        configuration: Configuration | None = None,
        environment: Mapping[str, str] | None = None,
        held: SlurmAllocations | None = None,
    ) -> str:
        """The sentence of what was chosen."""
        source = choose_source(
            configuration or Configuration(),
            wanted or SourceRequest(),
            environment=environment or {},
            openers=self.openers,
            poll=lambda: held or SlurmAllocations(),
        )
        self.shown = source.read()
        source.close()
        return source.about.sentence


def absent(what: str = "is not there") -> NotFoundError:
    return NotFoundError(what, where="libnvidia-ml.so")


def refused() -> InputError:
    return InputError(
        "connection refused", where="http://localhost:9400/metrics", do="is it running?"
    )


def test_the_first_that_reports_activity_is_taken_and_no_other_is_opened() -> None:
    opened = Opened({"nvml": EVERY, "dcgm-exporter": EVERY, "dmon": EVERY})
    assert opened.choose() == "nvml, 4 GPUs; all shown"
    assert opened.tried == ["nvml"]


@pytest.mark.parametrize(
    ("here", "taken"),
    [
        ({"nvml": PLAIN, "dcgm-exporter": EVERY, "dmon": EVERY}, "dcgm-exporter"),
        ({"nvml": PLAIN, "dcgm-exporter": CSV, "dmon": EVERY}, "dmon"),
        ({"nvml": PLAIN, "dcgm-exporter": CSV, "dmon": absent()}, "dcgm-exporter"),
        ({"nvml": PLAIN, "dcgm-exporter": refused(), "dmon": absent()}, "nvml"),
        ({"nvml": absent(), "dcgm-exporter": PLAIN, "dmon": PLAIN}, "dcgm-exporter"),
        # every counter that decides the class counts, the others only where these are as many
        ({"nvml": NO_FP16, "dcgm-exporter": NO_XID, "dmon": absent()}, "dcgm-exporter"),
    ],
)
def test_else_the_one_that_tells_most(here: Mapping[str, object], taken: str) -> None:
    opened = Opened(here)
    assert opened.choose().startswith(f"{taken}, ")
    assert {name: source.closed for name, source in opened.sources.items()} == dict.fromkeys(
        opened.sources, 1
    )


def test_where_nothing_is_there_it_is_told_what_was_tried_and_what_to_do() -> None:
    opened = Opened(
        {"nvml": absent(), "dcgm-exporter": refused(), "dmon": NotFoundError("no dcgmi on PATH")}
    )
    with pytest.raises(NotFoundError) as reported:
        opened.choose()
    assert str(reported.value) == (
        "no GPU telemetry source found; tried:\n  - nvml: libnvidia-ml.so: is not there\n"
        "  - dcgm-exporter: http://localhost:9400/metrics: connection refused\n  - dmon: no "
        "dcgmi on PATH\n"
        "  - what to do: run it on a node with GPUs, name an exporter with --url, or try "
        "--simulate 8"
    )


def test_all_where_nothing_is_there_names_where_a_fleet_is_configured() -> None:
    with pytest.raises(NotFoundError, match=r"\[\[sources\]\] in tachograph.toml.*--simulate 8$"):
        Opened({"nvml": absent()}).choose(SourceRequest(everything=True))


def test_without_gpus_here_the_fleet_is_shown_with_a_remark() -> None:
    opened = Opened({"nvml": absent()}, {"prometheus": EVERY})
    sentence = opened.choose(configuration=PROMETHEUS)
    assert sentence == "prometheus, 8 GPUs; all shown; no GPU telemetry source on this node"


def test_a_fleet_that_does_not_answer_gives_way_to_the_next() -> None:
    opened = Opened({"nvml": EVERY}, {"prometheus": refused(), "dcgm-exporter": EVERY})
    assert opened.choose(SourceRequest(everything=True), BOTH).startswith("dcgm-exporter, 8 GPUs")
    opened = Opened({"nvml": EVERY}, {"prometheus": refused()})
    with pytest.raises(
        NotFoundError, match=r"- prometheus: .*connection refused\n.*collect --check"
    ):
        opened.choose(SourceRequest(everything=True), PROMETHEUS)


JOB = {
    "SLURM_JOB_ID": "14",
    "SLURM_JOB_GPUS": "1,3",
    "SLURM_ARRAY_JOB_ID": "3",
    "SLURM_ARRAY_TASK_ID": "0",
}
OF_TWO_NODES = JOB | {"SLURM_NNODES": "2"}
CONFINED = {"SLURM_JOB_ID": "5", "SLURM_JOB_GPUS": "2,3,6,7"}
HERE_ALONE = "this node only: [[sources]] names no Prometheus and no exporters"
OWN = "nvml, 4 GPUs; 2 of 4 GPUs, those of job 3_0"
HELD = SlurmAllocations(
    {None: {("n1", 2): GpuAllocation("7", "bo"), ("n2", 3): GpuAllocation("7", "bo")}}
)
ALIAS = SlurmAllocations(
    {None: {("n2", 0): GpuAllocation("3_0")}}, {None: {"14": GpuAllocation("3_0")}}
)


def everywhere() -> Opened:
    return Opened(
        {"nvml": EVERY, "dcgm-exporter": refused(), "dmon": EVERY},
        {"prometheus": EVERY, "dcgm-exporter": EVERY},
    )


@pytest.mark.parametrize(
    ("request_", "more", "sentence"),
    [
        # of a fleet Prometheus is the first
        ({"everything": True}, {"configuration": BOTH}, "prometheus, 8 GPUs; all shown"),
        (
            {"job": "7"},
            {"configuration": BOTH, "held": HELD},
            "prometheus, 8 GPUs; 2 of 8 GPUs, those of job 7 on 2 nodes",
        ),
        (
            {"gpus": "n2:1"},
            {"configuration": PROMETHEUS},
            "prometheus, 8 GPUs; 1 of 8 GPUs, as selected",
        ),
        ({"gpus": "1"}, {"configuration": PROMETHEUS}, "nvml, 4 GPUs; 1 of 4 GPUs, as selected"),
        # where no fleet is configured, it is this node
        ({"everything": True}, {}, "nvml, 4 GPUs; all shown"),
        (
            {"job": "7"},
            {"held": HELD},
            f"nvml, 4 GPUs; 1 of 4 GPUs, those of job 7; {HERE_ALONE}",
        ),
        # one's own job on one node needs no fleet, on several it does
        *(
            ({"job": job}, {"configuration": PROMETHEUS, "environment": JOB}, OWN)
            for job in ("14", "3_0")
        ),
        (
            {"job": "14"},
            {"configuration": PROMETHEUS, "environment": OF_TWO_NODES, "held": ALIAS},
            "prometheus, 8 GPUs; 1 of 8 GPUs, those of job 14",
        ),
        # more than one's own job
        ({"everything": True}, {"environment": JOB}, "nvml, 4 GPUs; all shown"),
        (
            {"everything": True},
            {"environment": CONFINED},
            "nvml, 4 GPUs; 4 GPUs of job 5 (its cgroup hides others)",
        ),
        # a source that was requested is the only one tried
        ({"source": "dmon"}, {}, "dmon, 4 GPUs; all shown"),
        ({"urls": ("http://n1:9400/metrics",)}, {}, "dcgm-exporter, 8 GPUs; all shown"),
        (
            {"source": "dcgm-exporter", "everything": True},
            {"configuration": EXPORTERS},
            "dcgm-exporter, 8 GPUs; all shown",
        ),
        # what is played back or simulated is shown whole, also in a job
        ({"simulate": 4}, {"environment": JOB}, "simulated, 4 GPUs; all shown"),
        ({"recording": "r"}, {"environment": JOB}, "recording, 4 GPUs; all shown"),
        ({"recording": "r", "gpus": "2"}, {}, "recording, 4 GPUs; 1 of 4 GPUs, as selected"),
    ],
)
def test_a_request_decides_on_source_and_gpus(
    request_: dict[str, Any], more: dict[str, Any], sentence: str
) -> None:
    opened = everywhere()
    assert opened.choose(SourceRequest(**request_), **more) == sentence
    assert len(opened.tried) == 1
    allocations = opened.shown.allocations.values()
    holders = {(allocation.job_id, allocation.user) for allocation in allocations}
    for name, holder in {"job 7": ("7", "bo"), "job 5": ("5", None)}.items():
        assert name not in sentence or holders == {holder}


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({"job": "8"}, NotFoundError, "job 8 has no GPU in view; jobs in view: 7"),
        ({"source": "dcgm-exporter"}, InputError, "connection refused; is it running"),
        ({"source": "smi"}, UsageError, "--source: unknown source 'smi'"),
        ({"source": "nvml", "urls": ("http://x",)}, UsageError, "--url does not apply to nvml"),
        ({"gpus": "x"}, UsageError, "invalid GPU"),
    ],
)
def test_what_does_not_fit_is_refused(
    request_: dict[str, Any], error: type[TachographError], message: str
) -> None:
    opened = everywhere()
    with pytest.raises(error, match=message):
        opened.choose(SourceRequest(**request_), held=HELD)
    assert all(source.closed for source in opened.sources.values())


def test_inside_a_job_its_gpus_are_shown_and_slurm_is_left_alone() -> None:
    def never() -> SlurmAllocations:
        raise AssertionError("Slurm is polled")

    source = choose_source(
        PROMETHEUS, SourceRequest(), environment=JOB, openers=everywhere().openers, poll=never
    )
    assert [gpu.name for gpu in source.read().gpus] == ["n1:1", "n1:3"]
    assert source.about.sentence == OWN


def test_numbers_of_slurm_are_not_put_on_what_nvml_counts_in_a_job() -> None:
    opened = everywhere()
    opened.choose(SourceRequest(gpus="2"), environment=JOB, held=HELD)
    assert opened.shown.allocations == {}


def test_wrong_settings_are_told_and_not_passed_over() -> None:
    wrong = ConfigError("url is none", where="[[sources]] prometheus")
    with pytest.raises(ConfigError):
        Opened({"nvml": wrong}).choose()
    with pytest.raises(ConfigError):
        Opened({}, {"prometheus": wrong, "dcgm-exporter": EVERY}).choose(
            SourceRequest(everything=True), PROMETHEUS
        )
