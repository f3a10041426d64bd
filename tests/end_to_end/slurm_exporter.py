"""One exporter page per emulated node: busy GPUs are those that Slurm has given to a job, and every
page is logged.

Slurm's prolog writes the job that got a GPU into `held/NODE/GPU`, its epilog removes it. The
exporter looks there each time it is polled. What it answered, and nothing else, is the truth that a
job's numbers are compared with.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from servers.process import free_port

CAPACITY_MIB = 81_559
PAGE_NUMBER = "exporter_page_number"  # of each page; reports which answer a stored sample came from


@dataclass(frozen=True, slots=True)
class Reading:
    """What one GPU showed on one page. `t`: when, seconds since 1970. `job`: who held it, None: no
    one.
    """

    t: float
    job: int | None
    gpu_util: int  # percent
    power_w: float
    energy_mj: int
    hbm_used_mib: int


@dataclass(slots=True)
class Meter:
    """The energy counter of one GPU."""

    energy_j: float = 1e6
    seen: float | None = None

    def advance(self, now: float, power_w: float) -> int:
        """Millijoules after drawing so much since last seen."""
        self.energy_j += 0.0 if self.seen is None else power_w * (now - self.seen)
        self.seen = now
        return round(self.energy_j * 1000)


@dataclass(slots=True)
class Exporter:
    """The GPUs of one node. `pages[n]`: what page n reported, by GPU."""

    node: str
    gpus: int
    held: Path
    port: int = 0
    pages: list[list[Reading]] = field(default_factory=list)
    meters: list[Meter] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def page(self, *, with_job: bool) -> str:
        """The page for now; `with_job`: held GPUs carry the label `hpc_job`."""
        with self.lock:
            now = time.time()
            readings = [self._read(gpu, now) for gpu in range(self.gpus)]
            number = len(self.pages)
            self.pages.append(readings)
        lines = [f"# TYPE {PAGE_NUMBER} gauge", f'{PAGE_NUMBER}{{Hostname="{self.node}"}} {number}']
        for name, kind, values in _metrics(readings):
            lines += [f"# HELP {name} As DCGM tells it.", f"# TYPE {name} {kind}"]
            labels = (
                self._labels(gpu, r.job if with_job else None) for gpu, r in enumerate(readings)
            )
            lines += [
                f"{name}{{{label}}} {value}" for label, value in zip(labels, values, strict=True)
            ]
        return "\n".join(lines) + "\n"

    def _read(self, gpu: int, now: float) -> Reading:
        job = holder(self.held / self.node / str(gpu))
        util, power, memory = load(job, gpu, now)
        return Reading(now, job, util, power, self.meters[gpu].advance(now, power), memory)

    def _labels(self, gpu: int, job: int | None) -> str:
        labels = (
            f'gpu="{gpu}",UUID="GPU-{self.node}-{gpu}",pci_bus_id="00000000:{gpu + 7:02X}:00.0",device="nvidia{gpu}",'
            f'modelName="NVIDIA A100-SXM4-80GB",Hostname="{self.node}"'
        )
        return labels if job is None else f'{labels},hpc_job="{job}"'


def holder(path: Path) -> int | None:
    """The job that a file of `held` names; None where there is none."""
    try:
        printed = path.read_text().strip()
    except FileNotFoundError:
        return None
    return int(printed) if printed else None


def load(job: int | None, gpu: int, now: float) -> tuple[int, float, int]:
    """(utilization in percent, watts, MiB in use) of a GPU: different for every job, GPU and
    second.
    """
    if job is None:
        return 0, round(55 + gpu + 0.5 * math.sin(now / 5), 3), 4
    share = 0.5 + 0.4 * math.sin(now / 9 + gpu + 0.37 * job)
    return (
        round(100 * share),
        round(90 + 260 * share + job % 13, 3),
        round(20_000 + 500 * (job % 31) + 10_000 * share),
    )


def _metrics(readings: Sequence[Reading]) -> Iterator[tuple[str, str, list[object]]]:
    yield "DCGM_FI_DEV_GPU_UTIL", "gauge", [r.gpu_util for r in readings]
    yield "DCGM_FI_DEV_POWER_USAGE", "gauge", [r.power_w for r in readings]
    yield "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", [r.energy_mj for r in readings]
    yield "DCGM_FI_DEV_FB_USED", "gauge", [r.hbm_used_mib for r in readings]
    yield "DCGM_FI_DEV_FB_FREE", "gauge", [CAPACITY_MIB - r.hbm_used_mib for r in readings]


@contextmanager
def exporters(nodes: Sequence[str], *, gpus: int, held: Path) -> Iterator[dict[str, Exporter]]:
    """Exporters that answer for the time of the block: `/metrics` without, `/with-job` with the
    label `hpc_job`.
    """
    made = {
        node: Exporter(node, gpus, held, meters=[Meter() for _ in range(gpus)]) for node in nodes
    }
    with ExitStack() as stack:
        for exporter in made.values():
            stack.enter_context(_serving(exporter))
        yield made


@contextmanager
def _serving(exporter: Exporter) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exporter.page(with_job=self.path == "/with-job").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: the pages are the log."""

    server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
    exporter.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
