"""Nodes with exporters at which everything goes wrong that may: their pages as text, and servers
that answer them.

fleet = FaultyFleet(random.Random(1), recorded=b"")
fleet.go_on()               # time passes, faults begin and end
fleet.source                # a live source: the exporter's own reading of these pages
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from plain_numbers import FIELDS
from servers.damage import damaged
from servers.exporter import Gpu, Node, page
from tachograph.annexes.watch.live.snapshot import Snapshot, SourceInfo
from tachograph.annexes.watch.live.sources.feeds import FeedSource, PolledFeed
from tachograph.catalog.chunks import Chunk
from tachograph.sources.registry import PollOutcome, Watermark
from tachograph.sources.series import SeriesMemory, SeriesRereads
from tachograph.sources.series_rows import SeriesRows

BEGIN = 1_795_255_200.0  # 2026-11-21 10:00:00 UTC
NODES = 4
# {metric: largest value}
METRICS = {
    f"DCGM_FI_{name}": min(high / factor, 5e10) for name, _, factor, _, high in FIELDS.values()
}
# marks for "no value" of 32 and 64 bits, of floating point, and what fits nowhere
SENTINELS = (
    *(0x7FFFFFF0 + k for k in range(4)),
    *(0x7FFFFFFFFFFFFFF0 + k for k in range(4)),
    *(140737488355328.0 + k for k in range(4)),
    *(2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -(2**31), -(2**63)),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        -1.0,
        -273.15,
        1e38,
        1e300,
        5e-324,
        -0.0,
        101.0,
        1.0000001,
    ),
)
HOSTS = (
    *("gpu-node-7", "nid001234.cluster.example.org", "N1", "10.1.2.3", "n1:9400", "-", "", " "),
    *(
        "größe-ß",
        "ノード一番目",
        "עברית",
        "e\u0301\u0301\u0301",
        "\u200b\u202e\u2066",
        "🖥️🔥👩\u200d👧",
    ),
    *(
        "n\x1b[2J",
        "x" * 300,
        "9" * 5000,
        "[red]n[/red]",
        "$(reboot)",
        "%s{0}",
        "None",
        "nan",
        "n\\n1",
        "\ud7ff\ufffd",
    ),
)
MODELS = (
    *("NVIDIA A100-SXM4-40GB", "NVIDIA GH200 480GB", "Tesla T4", "", "H" * 500),
    *("GPU \x1b]0;title\x07", "未知の装置", "[bold]x"),
)
JOBS = (
    "4711",
    "4712",
    "8",
    "9",
    "0",
    "1_3",
    "12_7",
    "2+0",
    "x",
    "99999999999999999999",
    "-5",
    "７",
    "job 3",
    "8,9",
)
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>\x00 }{ nginx</body></html>\n"


@dataclass(slots=True)
class FaultyServer:
    """Stands in for one exporter: what it answers next, or why not, and whether it answers at
    all.
    """

    node: str
    next: bytes | str = b""
    answers: bool = True


class FaultyFeed:
    """Polls the exporters that answer: what comes then is the same in every run."""

    def __init__(self, servers: list[FaultyServer]) -> None:
        self.outcome = PollOutcome()
        self._servers = servers
        self._memory = SeriesMemory(rereads=SeriesRereads(30.0))

    @property
    def exporters(self) -> frozenset[str]:
        return frozenset(self._memory.vocabulary.exporters)

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield the pages of all as one chunk."""
        self.outcome = PollOutcome()
        rows = SeriesRows(self._memory)
        for server in self._servers:
            if not server.answers or isinstance(server.next, str):
                why = (
                    server.next
                    if isinstance(server.next, str)
                    else "is still answering the previous poll"
                )
                self.outcome.unreachable[f"{server.node}:9400"] = why
            else:
                rows.add_page(server.next, t=now, node=server.node)
        yield Chunk("faulty", "dcgm-exporter", "faulty", rows.parts(), rows.known)

    def close(self) -> None:
        """Nothing is held."""


class PolledSource:
    """A source that polls where it is read, not in a thread."""

    def __init__(self, feed: PolledFeed, source: FeedSource) -> None:
        self._feed, self._source = feed, source

    @property
    def about(self) -> SourceInfo:
        return self._source.about

    def read(self) -> Snapshot:
        self._feed.poll()
        return self._source.read()

    def close(self) -> None:
        self._source.close()


@dataclass(slots=True)
class _Host:
    """One node: its units, the name it gives itself, metrics it leaves out."""

    name: str
    units: list[Gpu]
    left_out: set[str] = field(default_factory=set)
    stamp: bool = False


class FaultyFleet:
    """Some nodes, one of which may answer a recorded page; what happens is decided by `random_`
    alone.
    """

    def __init__(self, random_: random.Random, *, recorded: bytes = b"") -> None:
        self.random = random_
        self.now = BEGIN
        self._recorded = recorded
        self._hosts = [self._host(number) for number in range(NODES)]
        self._servers = [FaultyServer(f"n{number}") for number in range(NODES + bool(recorded))]
        feed = PolledFeed(
            FaultyFeed(self._servers),
            where="faulty",
            every_s=1.0,
            kept_s=90.0,
            clock=lambda: self.now,
        )
        source = FeedSource(
            "dcgm-exporter",
            [feed],
            sentence=lambda source: f"{NODES} exporters",
            stuck_s=120.0,
            clock=lambda: self.now,
        )
        self.source = PolledSource(feed, source)
        self._write()

    def go_on(self) -> None:
        """Let time pass and something happen, then write the pages anew."""
        step = self.random.choice([0.1, 1.0, 1.0, 1.0, 1.0, 2.0, 10.0, 35.0])
        self.now += step
        for host in self._hosts:
            for unit in host.units:
                if self.random.random() < 0.7:
                    unit.values.update(self._values())
        for happen, chance in self._incidents.items():
            if self.random.random() < chance:
                happen()
        self._write()

    # --- what lasts until something else happens

    @property
    def _incidents(self) -> dict[Callable[[], None], float]:
        return {
            self._sentinels: 0.3,
            self._leave_out: 0.05,
            self._tell_all: 0.05,
            self._take_away: 0.05,
            self._add: 0.05,
            self._rename: 0.04,
            self._name_again: 0.04,
            self._odd_labels: 0.05,
            self._slice: 0.03,
            self._unslice: 0.03,
            self._change_jobs: 0.1,
            self._xid: 0.05,
            self._lower: 0.1,
            self._stamp: 0.02,
            self._back: 0.01,
            self._ahead: 0.005,
            self._slow: 0.02,
            self._answer: 0.2,
        }

    def _host(self, number: int) -> _Host:
        units = [Gpu(index, dict(self._values()), jobs=(JOBS[number],)) for index in range(4)]
        return _Host(f"n{number}", units)

    def _values(self) -> dict[str, float]:
        return {
            name: round(self.random.uniform(0, high), 6 if high <= 1 else 0)
            for name, high in METRICS.items()
        }

    def _any(self) -> _Host:
        return self.random.choice(self._hosts)

    def _unit(self) -> Gpu | None:
        units = self._any().units
        return self.random.choice(units) if units else None

    def _sentinels(self) -> None:
        for _ in range(self.random.randrange(1, 20)):
            if (unit := self._unit()) is not None:
                unit.values[self.random.choice(list(METRICS))] = self.random.choice(SENTINELS)

    def _leave_out(self) -> None:
        self._any().left_out.update(
            self.random.sample(list(METRICS), self.random.randrange(len(METRICS) + 1))
        )

    def _tell_all(self) -> None:
        self._any().left_out.clear()

    def _take_away(self) -> None:
        host = self._any()
        host.units = self.random.sample(host.units, self.random.randrange(len(host.units) + 1))

    def _add(self) -> None:
        host = self._any()
        if len(host.units) < 16:
            host.units.append(
                Gpu(self.random.choice([0, 1, 2, 3, 4, 5, 6, 7, 15, 255]), dict(self._values()))
            )

    def _rename(self) -> None:
        self._any().name = self.random.choice(HOSTS)

    def _name_again(self) -> None:
        number = self.random.randrange(NODES)
        self._hosts[number].name = f"n{number}"

    def _odd_labels(self) -> None:
        if (unit := self._unit()) is not None:
            label = self.random.choice(
                ["modelName", "UUID", "pci_bus_id", "gpu", "device", "container", "pod", "err_msg"]
            )
            odd = (*MODELS, *HOSTS, "-1", "1e3", "0x1", "９", "4294967296")
            unit.labels[label] = self.random.choice(odd)
            if self.random.random() < 0.5:
                unit.labels.clear()

    def _slice(self) -> None:
        host = self._any()
        index = self.random.randrange(8)
        for size in self.random.sample(range(14), 3):
            labels = {"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": str(size)}
            host.units.append(Gpu(index, dict(self._values()), labels=labels))
        host.units = host.units[-16:]

    def _unslice(self) -> None:
        host = self._any()
        host.units = [unit for unit in host.units if "GPU_I_ID" not in unit.labels]

    def _change_jobs(self) -> None:
        if (unit := self._unit()) is not None:
            unit.jobs = tuple(self.random.choices(JOBS, k=self.random.choice([0, 1, 1, 2, 3])))

    def _xid(self) -> None:
        if (unit := self._unit()) is not None:
            unit.values["DCGM_FI_DEV_XID_ERRORS"] = self.random.choice(
                [0, 13, 31, 48, 63, 79, 94, 95, 119, 999, 99999]
            )

    def _lower(self) -> None:
        if (unit := self._unit()) is not None:
            bits = self.random.choice(
                [0, 1, 4, 8, 0x20, 0x40, 0x80, 0xE8, 0x1FF, 2**31, 2**52, 2**62]
            )
            unit.values["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"] = bits

    def _stamp(self) -> None:
        host = self._any()
        host.stamp = not host.stamp

    def _back(self) -> None:
        self.now -= self.random.choice([0.5, 5.0, 3600.0, 86400.0])

    def _ahead(self) -> None:
        self.now += self.random.choice([3600.0, 86400.0])

    def _slow(self) -> None:
        self.random.choice(self._servers).answers = False

    def _answer(self) -> None:
        for server in self._servers:
            server.answers = True

    # --- pages

    def _write(self) -> None:
        """Put the pages of now where they are polled, some of them damaged."""
        for number, server in enumerate(self._servers):
            text = self._recorded if number == NODES else self._page(self._hosts[number])
            if self.random.random() < 0.02:
                server.next = "answered 500"
                continue
            server.next = self._damaged(text)

    def _page(self, host: _Host) -> bytes:
        units = [
            Gpu(
                unit.index,
                {name: value for name, value in unit.values.items() if name not in host.left_out},
                unit.jobs,
                {"Hostname": host.name, **unit.labels},
            )
            for unit in host.units
        ]
        return page(host.name, Node(units, stamp=host.stamp), self.now).encode(
            errors="surrogatepass"
        )

    def _damaged(self, text: bytes) -> bytes:
        """The page, or what came of it, or none of an exporter."""
        if self.random.random() < 0.85:
            return text
        others = (HTML, b"", b"\n", b"\x00" * 100, self.random.randbytes(2000))
        injured = damaged(self.random, text)
        return self.random.choice([*[injured] * 5, self.random.choice(others)])
