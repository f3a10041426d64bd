"""A dcgm-exporter whose values a test sets: one address per node, faults on demand, a log of what
was served when.

with exporter({"n1": {0: {"DCGM_FI_DEV_GPU_UTIL": 50}}}) as server:
    server.url("n1")                                        # http://127.0.0.1:PORT/metrics
    server.set("n1", 0, {"DCGM_FI_DEV_GPU_UTIL": 90})       # a value may be a function of the time, too
    server.hold("n1", 0, "4711")                            # hpc_job; several jobs repeat the series
    server.fail("n1", "slow")                               # see Fault
    server.served                                           # [Served(node, t, status, text)]
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Literal

Value = float | Callable[[float], float]
Values = Mapping[str, Value]
Fault = Literal["slow", "status", "cut_off", "half_header", "garbage", "closed", "drip"]
MODEL = "NVIDIA H100 80GB HBM3"


@dataclass(slots=True)
class Gpu:
    """One GPU or MIG slice as the page shows it. `labels` are added to the usual ones and
    replace them.
    """

    index: int
    values: dict[str, Value]
    jobs: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Node:
    """One address. `more`: text behind the GPUs' metrics. `stamp`: write the time behind each
    value.
    """

    gpus: list[Gpu]
    more: str = ""
    stamp: bool = False
    fault: Fault | None = None
    clock_ahead_s: float = 0.0
    port: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """One answer."""

    node: str
    t: float
    status: int
    text: str
    headers: Mapping[str, str]


def page(name: str, node: Node, t: float) -> str:
    """Return what dcgm-exporter would print for a node."""
    metrics = dict.fromkeys(metric for gpu in node.gpus for metric in gpu.values)
    lines: list[str] = []
    for metric in metrics:
        kind = (
            "counter" if metric.endswith(("ENERGY_CONSUMPTION", "COUNTER", "_TOTAL")) else "gauge"
        )
        lines += [f"# HELP {metric} {metric} of the GPU.", f"# TYPE {metric} {kind}"]
        for gpu in node.gpus:
            if metric in gpu.values:
                lines += _lines(name, gpu, metric, t, stamped=node.stamp)
    return "".join(f"{line}\n" for line in lines) + node.more


def _lines(name: str, gpu: Gpu, metric: str, t: float, *, stamped: bool) -> Iterator[str]:
    given = gpu.values[metric]
    value = given(t) if callable(given) else given
    labels = {
        "gpu": str(gpu.index),
        "UUID": f"GPU-{name}-{gpu.index}",
        "pci_bus_id": f"00000000:{gpu.index + 7:02X}:00.0",
        "device": f"nvidia{gpu.index}",
        "modelName": MODEL,
        "Hostname": name,
        **gpu.labels,
    }
    for job in gpu.jobs or (None,):
        reported = labels if job is None else {**labels, "hpc_job": job}
        block = ",".join(f'{label}="{text}"' for label, text in reported.items() if text)
        yield f"{metric}{{{block}}} {value}" + (f" {int(t * 1000)}" if stamped else "")


class Exporter:
    """Running exporters of some nodes."""

    def __init__(self, nodes: Mapping[str, Mapping[int, Values]], *, slow_s: float) -> None:
        self.nodes = {
            name: Node([Gpu(index, dict(values)) for index, values in gpus.items()])
            for name, gpus in nodes.items()
        }
        self.served: list[Served] = []
        self._slow_s = slow_s
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._over: asyncio.Event = asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), daemon=True
        )

    def url(self, node: str) -> str:
        """Address of a node's page."""
        return f"http://127.0.0.1:{self.nodes[node].port}/metrics"

    @property
    def urls(self) -> list[str]:
        """Addresses of all nodes."""
        return [self.url(node) for node in self.nodes]

    def gpu(self, node: str, gpu: int) -> Gpu:
        """The first unit with this index; `nodes[node].gpus` has all of them, MIG slices too."""
        return next(unit for unit in self.nodes[node].gpus if unit.index == gpu)

    def set(self, node: str, gpu: int, values: Values) -> None:
        """Change values of a GPU."""
        self.gpu(node, gpu).values.update(values)

    def hold(self, node: str, gpu: int, *jobs: str) -> None:
        """Say which jobs hold a GPU; none: the label is left out."""
        self.gpu(node, gpu).jobs = jobs

    def fail(self, node: str, fault: Fault | None) -> None:
        """Answer wrongly from now on; None: answer rightly again."""
        self.nodes[node].fault = fault

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        if not self._ready.wait(60):
            raise RuntimeError("the exporter did not start")

    def stop(self) -> None:
        """Listen no longer."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)
        self._loop.close()

    async def _serve(self) -> None:
        servers = [await self._listen(name, node) for name, node in self.nodes.items()]
        self._ready.set()
        await self._over.wait()
        for server in servers:
            server.close()
        mine = asyncio.current_task()
        open_ones = [task for task in asyncio.all_tasks() if task is not mine]
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)

    async def _listen(self, name: str, node: Node) -> asyncio.Server:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while await self._answer(name, node, reader, writer):
                    pass
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", node.port, backlog=512)
        node.port = server.sockets[0].getsockname()[1]
        return server

    async def _answer(
        self, name: str, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether the connection stays open."""
        requested = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            key.lower(): value
            for key, _, value in (line.partition(": ") for line in requested[1:] if line)
        }
        fault = node.fault
        if fault == "closed":
            return False
        if fault == "slow":
            await asyncio.sleep(self._slow_s)
        now = time.time()
        status = (
            500 if fault == "status" else 200 if requested[0].split(" ")[1] == "/metrics" else 404
        )
        text = page(name, node, now) if status == 200 else "no\n"
        if fault == "garbage":
            text = "<html>\x00 it works {{{ </html>\n" * 3
        body = text.encode()
        date = format_datetime(datetime.fromtimestamp(now + node.clock_ahead_s, UTC), usegmt=True)
        head = (
            f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\nDate: {date}\r\n"
            "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: "
            f"{len(body)}\r\n\r\n"
        ).encode()
        self.served.append(Served(name, now, status, text, headers))
        sent = head[: len(head) // 2] if fault == "half_header" else head
        writer.write(sent)
        if fault == "drip":
            for byte in body:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(self._slow_s / 20)
        elif fault != "half_header":
            writer.write(body[: len(body) // 2] if fault == "cut_off" else body)
        await writer.drain()
        return fault not in ("half_header", "cut_off")


@contextmanager
def exporter(
    nodes: Mapping[str, Mapping[int, Values]], *, slow_s: float = 30.0
) -> Iterator[Exporter]:
    """Run exporters of `nodes` ({name: {GPU: {metric: value}}}) for the time of the block."""
    server = Exporter(nodes, slow_s=slow_s)
    server.start()
    try:
        yield server
    finally:
        server.stop()
