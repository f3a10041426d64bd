"""The session of one GPU: its collector, and the thread that sums up samples.

The buffer keeps the oldest samples: when it is full, CUPTI reports an overflow, which is counted,
and sampling is started again with an empty one. (In the other mode the newest overwrite the oldest,
and nobody notices.) Draining depends on nothing but this thread: sums wait for a slow reader at no
cost.

Where a chip counts in several passes, they take turns. What the running pass does not count is
taken from its last turn, as a rate per elapsed cycle of the SMs; a pass that does not count what
scores need leaves a gap, which counts as lost time. Unverified on a GPU: turns, and what one costs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tachograph.annexes.watch.pm_sampling.faults import (
    PmSamplingError,
    Running,
    fault_of,
    is_running,
)
from tachograph.annexes.watch.pm_sampling.library import CudaGpu, PmCollector, PmLibrary, PmSample
from tachograph.annexes.watch.pm_sampling.metrics import SHARE, PmMetricSet, choose_metrics
from tachograph.catalog.score_formulas import SM_ELAPSED
from tachograph.sources.score_sums import MINUTE_S, PmSums, finite

# Chips without a trigger by time: `Collector.configure` of cupti-python.
CYCLES_ONLY = ("TU1", "GA100")
# Assumed there, where an interval is given in seconds: the A100's boost clock; times are measured.
SYSCLK_HZ = 1.41e9
DECODED = 10_000  # samples taken at once: the library's own default
_GAP = 0.5  # of a sample: a longer distance between two is time that none covers
_SLACK_S = 1.0  # clock tolerance: a longer sample than the session has an unknown start
# Turns of all passes but the first: so long, and so many samples at least. The first has the rest.
_TURN_S, _TURN_SAMPLES, _FIRST_TURNS = 0.5, 5, 19


@dataclass(frozen=True, slots=True)
class PmInterval:
    """Sampling interval: in system clock cycles, if known, else in seconds.

    Published: one sample in 50 million cycles; with 35 to 1,000 million the values differed by 3 %
    at most.
    """

    seconds: float = 0.05
    cycles: int | None = None

    def trigger(self, chip: str) -> tuple[str, int]:
        """Return the name of the trigger mode, and the interval in its unit (cycles, ns).

        >>> PmInterval(0.05).trigger("GH100"), PmInterval(0.05).trigger("GA100")
        (('GPU_TIME_INTERVAL', 50000000), ('GPU_SYSCLK_INTERVAL', 70500000))
        """
        if self.cycles is not None:
            return "GPU_SYSCLK_INTERVAL", self.cycles
        if chip.startswith(CYCLES_ONLY):
            return "GPU_SYSCLK_INTERVAL", round(self.seconds * SYSCLK_HZ)
        return "GPU_TIME_INTERVAL", round(self.seconds * 1e9)

    @property
    def turn_s(self) -> float:
        """Length of the turn of a pass that is not the first."""
        seconds = self.seconds if self.cycles is None else self.cycles / SYSCLK_HZ
        return max(_TURN_S, _TURN_SAMPLES * seconds)


class DeviceSampler:
    """PM sampling of one GPU: `open`, `start`, `take` repeatedly, `close`.

    fault: why sampling has ended, None while it runs.
    """

    def __init__(
        self,
        library: PmLibrary,
        gpu: CudaGpu,
        interval: PmInterval,
        *,
        buffer_bytes: int = 64 << 20,
        drain_s: float = 0.1,
        clock: Callable[[], float] = time.time,
        running: Running = is_running,
    ) -> None:
        self.gpu, self.interval = gpu, interval
        self.chip, self.chosen = "", PmMetricSet()
        self.fault: PmSamplingError | None = None
        self._library, self._buffer_bytes = library, buffer_bytes
        self._drain_s = drain_s
        self._clock, self._running = clock, running
        self._collector: PmCollector = library.pm_sampling.Collector(gpu.device)
        self._opened = False
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"pm-sampling-{gpu.device}", daemon=True
        )
        self._lock = threading.Lock()
        self._minutes: dict[int, PmSums] = {}
        self._offset_s: float | None = None  # from the clock of the GPU to ours
        self._last_ns: int | None = None  # end of the last sample
        self._since = 0.0  # when sampling was started
        self._pass = 0  # number of the running one
        self._turn_ends = 0.0
        self._turn: dict[str, float] = {}  # sums of this turn
        self._rates: dict[str, float] = {}  # of the last turn that counted it, per elapsed cycle

    def open(self) -> None:
        """Begin the session and choose metrics. Errors: PmSamplingError, with the session
        closed.
        """
        try:
            self._collector.enable()
            self.chip = self._library.chip(self.gpu.device)
            self.chosen = choose_metrics(self._library, self.chip)
            if not self.chosen.has_scores:
                raise PmSamplingError("passes")
            # The first pass comes last: then it has the rates of all others.
            self._begin_turn(len(self.chosen.passes) - 1)
            self._opened = True
        except Exception as problem:  # noqa: BLE001 the boundary: the others are sampled
            self._end_session()
            raise fault_of(problem, running=self._running) from None

    def start(self) -> None:
        """Drain from now on, in a thread."""
        self._thread.start()

    def drain(self) -> None:
        """Sum up the buffer and count overflows; give way to another pass when that is due.

        Errors: those of the library.
        """
        self._sum_up()
        passes = len(self.chosen.passes)
        if passes > 1 and self._clock() >= self._turn_ends and not self._stop.is_set():
            self._collector.stop()
            self._sum_up()
            self._end_turn()
            self._begin_turn((self._pass - 1) % passes)

    def _sum_up(self) -> None:
        while True:
            try:
                decoded = self._collector.decode(DECODED)
            except MemoryError:
                self._overflow()
                return
            self._note(list(decoded))
            if len(decoded) < DECODED:
                return

    def take(self) -> list[PmSums]:
        """Return the sums of each minute since the last call."""
        with self._lock:
            minutes, self._minutes = self._minutes, {}
        return list(minutes.values())

    def finish(self) -> None:
        """Stop sampling and drain the buffer; the session stays open."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        if self.fault is None and self._opened:
            with suppress(Exception):  # the GPU is gone: measured values are kept
                self._collector.stop()
                self.drain()
            self._opened = False

    def close(self) -> None:
        """Finish, and end the session; may be called twice."""
        self.finish()
        self._end_session()

    def _begin_turn(self, number: int) -> None:
        """Sample pass `number` from now on."""
        self._pass, self._turn = number, {}
        mode, interval = self.interval.trigger(self.chip)
        self._collector.configure(
            metrics=list(self.chosen.passes[number].values()),
            hardware_buffer_size=self._buffer_bytes,
            sampling_interval=interval,
            trigger_mode=getattr(self._library.pm_sampling.TriggerMode, mode),
        )
        self._start_sampling()
        turns = _FIRST_TURNS if number == 0 else 1
        self._turn_ends = self._since + turns * self.interval.turn_s

    def _end_turn(self) -> None:
        """Keep what was counted, per elapsed cycle, for the turns of the other passes."""
        elapsed = self._turn.get(SM_ELAPSED, 0.0)
        if elapsed > 0:
            self._rates |= {name: value / elapsed for name, value in self._turn.items()}

    def _start_sampling(self) -> None:
        self._since = self._clock()
        self._collector.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._drain_s):
                self.drain()
        except Exception as problem:  # noqa: BLE001 the boundary: one GPU must not end the others
            self.fault = fault_of(problem, running=self._running)

    def _end_session(self) -> None:
        self._opened = False
        with suppress(Exception):  # of a lost GPU nothing can be ended
            self._collector.disable()

    def _overflow(self) -> None:
        """Count an overflow; clear the buffer, whose times are unknown."""
        self._collector.stop()
        self._start_sampling()
        now = self._since
        with self._lock:
            self._sums(now).add(PmSums(now, now, overflows=1))

    def _note(self, samples: list[PmSample]) -> None:
        if not samples:
            return
        now = self._clock()
        offset = now - samples[-1].end_timestamp / 1e9
        # the least is the truest: the others contain the wait for the next drain
        self._offset_s = offset if self._offset_s is None else min(self._offset_s, offset)
        with self._lock:
            for sample in samples:
                self._add(sample, self._offset_s, longest_s=now - self._since + _SLACK_S)

    def _add(self, sample: PmSample, offset_s: float, longest_s: float) -> None:
        begin_ns, end_ns = sample.start_timestamp, sample.end_timestamp
        length_s = (end_ns - begin_ns) / 1e9
        sums = self._counted(sample.metric_values)
        valid = 0 < length_s <= longest_s and finite(sums.values())
        if valid:
            for name, value in sums.items():
                self._turn[name] = self._turn.get(name, 0.0) + value
        if not self.chosen.scored.keys() <= sums.keys():
            return
        sums = {**self._held(sums), **sums}
        before, self._last_ns = self._last_ns, end_ns
        lost_s = 0.0 if before is None else (begin_ns - before) / 1e9
        lost_s = lost_s if lost_s > _GAP * length_s else 0.0
        if not valid or len(sums) < self._names:
            return
        counted = PmSums(
            begin_ns / 1e9 + offset_s, end_ns / 1e9 + offset_s, length_s, 1, 0, lost_s, sums
        )
        self._sums(counted.begin).add(counted)

    def _counted(self, values: list[float]) -> dict[str, float]:
        """Return {name: cycles} of a sample; a share of a peak becomes cycles of its SMs."""
        metrics = self.chosen.passes[self._pass]
        counts = dict(zip(metrics, values, strict=True))
        elapsed = counts.get(SM_ELAPSED, 0.0)
        for name, metric in metrics.items():
            if metric.endswith(SHARE):
                # of no cycles there is no share, which is no number
                counts[name] = counts[name] / 100 * elapsed if elapsed > 0 else 0.0
        return counts

    def _held(self, sums: dict[str, float]) -> dict[str, float]:
        """Return what other passes counted in their last turns, at the cycles of this sample."""
        elapsed = sums.get(SM_ELAPSED, 0.0)
        return {name: rate * elapsed for name, rate in self._rates.items()}

    @property
    def _names(self) -> int:
        """How many names all passes count; before all had a turn, not every sample has them."""
        return len(set().union(*self.chosen.passes))

    def _sums(self, begin: float) -> PmSums:
        """Sums of the minute."""
        return self._minutes.setdefault(int(begin // MINUTE_S), PmSums(begin, begin))
