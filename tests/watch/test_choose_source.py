"""Which source is taken: the requested one, else the one that reports most; errors list what was
tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
HERE, FLEET = snapshot_of(node_of(4)), snapshot_of({**node_of(4), **node_of(4, node="n2")})
PROMETHEUS = Configuration(sources=({"source": "prometheus", "url": "http://p"},))
EXPORTERS = Configuration(sources=({"source": "dcgm-exporter", "url": "http://n1"},))


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


def test_all_and_jobs_are_looked_for_in_the_fleet_prometheus_first() -> None:
    both = Configuration(sources=(*EXPORTERS.sources, *PROMETHEUS.sources))
    opened = Opened({"nvml": EVERY}, {"prometheus": EVERY, "dcgm-exporter": EVERY})
    assert opened.choose(SourceRequest(everything=True), both).startswith("prometheus, 8 GPUs")
    held = SlurmAllocations(
        {None: {("n1", 1): GpuAllocation("7", "bo"), ("n2", 3): GpuAllocation("7", "bo")}}
    )
    assert opened.choose(SourceRequest(job="7"), both, held=held).endswith(
        "2 of 8 GPUs, those of job 7 on 2 nodes"
    )
    assert [allocation.user for allocation in opened.shown.allocations.values()] == ["bo", "bo"]
    assert opened.tried == ["fleet prometheus", "fleet prometheus"]


def test_a_fleet_that_does_not_answer_gives_way_to_the_next() -> None:
    both = Configuration(sources=(*EXPORTERS.sources, *PROMETHEUS.sources))
    opened = Opened({"nvml": EVERY}, {"prometheus": refused(), "dcgm-exporter": EVERY})
    assert opened.choose(SourceRequest(everything=True), both).startswith("dcgm-exporter, 8 GPUs")
    opened = Opened({"nvml": EVERY}, {"prometheus": refused()})
    with pytest.raises(
        NotFoundError, match=r"- prometheus: .*connection refused\n.*collect --check"
    ):
        opened.choose(SourceRequest(everything=True), PROMETHEUS)


def test_all_of_this_node_where_no_fleet_is_configured() -> None:
    assert (
        Opened({"nvml": EVERY}).choose(SourceRequest(everything=True)) == "nvml, 4 GPUs; all shown"
    )


def test_a_job_without_a_fleet_is_searched_here_with_a_remark() -> None:
    opened = Opened({"nvml": EVERY})
    sentence = opened.choose(
        SourceRequest(job="7"), held=SlurmAllocations({None: {("n1", 2): GpuAllocation("7")}})
    )
    assert sentence.endswith(
        "1 of 4 GPUs, those of job 7; this node only: [[sources]] names no Prometheus and no "
        "exporters"
    )
    with pytest.raises(NotFoundError, match="job 8 has no GPU in view; jobs in view: 7"):
        opened.choose(
            SourceRequest(job="8"), held=SlurmAllocations({None: {("n1", 2): GpuAllocation("7")}})
        )
    assert opened.sources["nvml"].closed


JOB = {
    "SLURM_JOB_ID": "14",
    "SLURM_JOB_GPUS": "1,3",
    "SLURM_ARRAY_JOB_ID": "3",
    "SLURM_ARRAY_TASK_ID": "0",
}


def test_inside_a_job_its_gpus_are_shown_and_slurm_is_left_alone() -> None:
    opened = Opened({"nvml": EVERY}, {"prometheus": EVERY})

    def never() -> SlurmAllocations:
        raise AssertionError("Slurm is polled")

    source = choose_source(
        PROMETHEUS, SourceRequest(), environment=JOB, openers=opened.openers, poll=never
    )
    assert [gpu.name for gpu in source.read().gpus] == ["n1:1", "n1:3"]
    assert source.about.sentence == "nvml, 4 GPUs; 2 of 4 GPUs, those of job 3_0"


@pytest.mark.parametrize("job", ["14", "3_0"])
def test_ones_own_job_on_one_node_needs_no_fleet(job: str) -> None:
    opened = Opened({"nvml": EVERY}, {"prometheus": EVERY})
    assert (
        opened.choose(SourceRequest(job=job), PROMETHEUS, JOB)
        == "nvml, 4 GPUs; 2 of 4 GPUs, those of job 3_0"
    )


def test_ones_own_job_on_several_nodes_is_looked_for_in_the_fleet() -> None:
    opened = Opened({"nvml": EVERY}, {"prometheus": EVERY})
    held = SlurmAllocations(
        {None: {("n2", 0): GpuAllocation("3_0")}}, {None: {"14": GpuAllocation("3_0")}}
    )
    sentence = opened.choose(
        SourceRequest(job="14"), PROMETHEUS, {**JOB, "SLURM_NNODES": "2"}, held
    )
    assert sentence == "prometheus, 8 GPUs; 1 of 8 GPUs, those of job 14"


def test_all_shows_more_than_ones_own_job_and_in_a_cgroup_says_whose_they_are() -> None:
    opened = Opened({"nvml": EVERY})
    assert (
        opened.choose(SourceRequest(everything=True), environment=JOB) == "nvml, 4 GPUs; all shown"
    )
    four = {"SLURM_JOB_ID": "5", "SLURM_JOB_GPUS": "2,3,6,7"}
    assert opened.choose(SourceRequest(everything=True), environment=four).endswith(
        "4 GPUs of job 5 (its cgroup hides others)"
    )
    assert {allocation.job_id for allocation in opened.shown.allocations.values()} == {"5"}


def test_numbers_of_slurm_are_not_put_on_what_nvml_counts_in_a_job() -> None:
    opened = Opened({"nvml": EVERY})
    opened.choose(
        SourceRequest(gpus="0"),
        environment=JOB,
        held=SlurmAllocations({None: {("n1", 0): GpuAllocation("99")}}),
    )
    assert opened.shown.allocations == {}


def test_a_source_that_was_asked_for_is_the_only_one_tried() -> None:
    opened = Opened(
        {"nvml": EVERY, "dmon": EVERY, "dcgm-exporter": refused()}, {"dcgm-exporter": EVERY}
    )
    assert opened.choose(SourceRequest(source="dmon")).startswith("dmon,")
    assert opened.choose(SourceRequest(urls=("http://n1:9400/metrics",))).startswith(
        "dcgm-exporter, 8 GPUs"
    )
    assert opened.choose(
        SourceRequest(source="dcgm-exporter", everything=True), EXPORTERS
    ).startswith("dcgm-exporter, 8 GPUs")
    with pytest.raises(InputError, match="connection refused; is it running"):
        opened.choose(SourceRequest(source="dcgm-exporter"))


def test_what_is_played_back_or_made_up_is_shown_whole_also_in_a_job() -> None:
    opened = Opened({})
    assert opened.choose(SourceRequest(simulate=4), environment=JOB).endswith("all shown")
    assert opened.choose(SourceRequest(recording="r"), environment=JOB).endswith("all shown")
    assert opened.choose(SourceRequest(recording="r", gpus="2")).endswith(
        "1 of 4 GPUs, as selected"
    )


def test_gpus_of_another_node_are_looked_for_in_the_fleet() -> None:
    opened = Opened({"nvml": EVERY}, {"prometheus": EVERY})
    assert opened.choose(SourceRequest(gpus="n2:1"), PROMETHEUS).startswith("prometheus")
    assert opened.choose(SourceRequest(gpus="1"), PROMETHEUS).startswith("nvml")


def test_what_does_not_fit_is_refused() -> None:
    opened = Opened({"nvml": EVERY}, {"prometheus": EVERY})
    with pytest.raises(UsageError, match="--source: unknown source 'smi'"):
        opened.choose(SourceRequest(source="smi"))
    with pytest.raises(UsageError, match="--url does not apply to nvml"):
        opened.choose(SourceRequest(source="nvml", urls=("http://x",)))
    with pytest.raises(UsageError, match="invalid GPU"):
        opened.choose(SourceRequest(gpus="x"))


def test_wrong_settings_are_told_and_not_passed_over() -> None:
    wrong = ConfigError("url is none", where="[[sources]] prometheus")
    with pytest.raises(ConfigError):
        Opened({"nvml": wrong}).choose()
    with pytest.raises(ConfigError):
        Opened({}, {"prometheus": wrong, "dcgm-exporter": EVERY}).choose(
            SourceRequest(everything=True), PROMETHEUS
        )
