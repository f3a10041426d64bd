"""Reads mutations of the recorded inputs: `make fuzz` (FUZZ=1000000). Prints one JSON object; 1
when a reader failed.

A mutation is decided by seed, reader and number alone, so any can be made again: `--reader NAME
--number N`. Failed means: any error that is not a TachographError, a process that died, more than a
second of processor time (of rules: 0.1 s), or more than 500 MB of memory. Each kind of failure is
reported once, with its reader and number.

    python tests/fuzz/fuzz.py --mutations 10000 --recorded DIR
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Before polars is imported: mutations are small, and others need the cores.
os.environ["POLARS_MAX_THREADS"] = "1"

from fuzz_targets import Target, by_name

from tachograph.catalog.errors import TachographError

SEED = 20260301
HANGS_S = 30.0  # on the wall: a process that is still at it is killed
MEMORY_MIB = 500
# Bytes a process may map: an absurd allocation fails instead of eating the machine.
ADDRESSES = 8 << 30
LIFE = 5000  # mutations per process
WHOLE_EVERY = 8
FORK = get_context("fork")


@dataclass(frozen=True, slots=True)
class Failure:
    """One kind of failure: the mutation that showed it first."""

    reader: str
    number: int
    kind: str  # error, died, slow, memory
    what: str


@dataclass(slots=True)
class Outcome:
    """What came of the mutations. `refused`: files that gave a TachographError; the others were
    read.
    """

    mutations: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    most_mib: float = 0.0
    failures: dict[str, Failure] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def note(self, failure: Failure) -> None:
        """Count a failure; the first of its kind is kept."""
        name = f"{failure.reader}: {failure.kind}: {failure.what}"
        self.failed[name] = self.failed.get(name, 0) + 1
        self.failures.setdefault(name, failure)

    def add(self, reported: Mapping[str, Any]) -> int:
        """Add what a child reported; return how many mutations it read."""
        self.mutations += reported["mutations"]
        self.refused += reported["refused"]
        self.slowest_s = max(self.slowest_s, reported["slowest_s"])
        self.most_mib = max(self.most_mib, reported["most_mib"])
        for kind, times in reported["failed"].items():
            self.failed[kind] = self.failed.get(kind, 0) + times
        for kind, failure in reported["failures"].items():
            self.failures.setdefault(kind, Failure(**failure))
        return int(reported["mutations"])


def mutation(target: Target, number: int, seed: int) -> bytes:
    """Return the mutation of that number."""
    return target.make(target.seeds, random.Random(f"{seed}/{target.name}/{number}"))


def failure_of(
    target: Target, number: int, content: bytes, folder: Path, *, whole: bool
) -> tuple[Failure | None, float, bool]:
    """Read `content`; return what failed, processor seconds, and whether it was refused with a
    TachographError.
    """
    path = folder / f"mutation{target.suffix}"
    path.write_bytes(content)
    failure, refused, took = _read(target, number, path, whole=whole)
    # The first file of a kind also pays for what is imported.
    if failure is None and took > target.seconds:
        took = min(took, _read(target, number, path, whole=whole)[2])
    if failure is None and took > target.seconds:
        failure = Failure(target.name, number, "slow", f"over {target.seconds:g} s")
    return failure, took, refused


def _read(
    target: Target, number: int, path: Path, *, whole: bool
) -> tuple[Failure | None, bool, float]:
    begun = time.process_time()
    failure, refused = None, False
    try:
        target.read(path, whole)
    except TachographError:
        refused = True
    except BaseException as problem:  # a panic of polars is no Exception
        if isinstance(problem, KeyboardInterrupt):
            raise
        failure = Failure(target.name, number, "error", signature(problem))
    return failure, refused, time.process_time() - begun


def is_whole(number: int, chosen: Sequence[Target]) -> bool:
    """Whether the rows of this mutation go on into the schema of their tables, which takes
    longer than reading.
    """
    return number // len(chosen) % WHOLE_EVERY == 0


def signature(problem: BaseException) -> str:
    """Return the kind of an error and the last place in the project that it came through."""
    frames = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if "tachograph" in frame.filename
    ]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "elsewhere"
    printed = " ".join(str(problem).split())[:60]
    return (
        f"{type(problem).__name__} at {place}: {printed}"
        if len(printed) < 60
        else f"{type(problem).__name__} at {place}"
    )


def peak_mib() -> float:
    """Return the most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read_all(
    chosen: Sequence[Target], numbers: range, seed: int, folder: Path, report: Connection
) -> None:
    """Read the mutations of these numbers in a child, or until it has become too large.

    report: gets each number before it is at work, and what came of all of them at the end.
    """
    # A panic that is caught has written to stderr before.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outcome = Outcome()
    for number in numbers:
        target = chosen[number % len(chosen)]
        report.send(number)
        failure, took, refused = failure_of(
            target, number, mutation(target, number, seed), folder, whole=is_whole(number, chosen)
        )
        outcome.mutations += 1
        outcome.refused += refused
        outcome.slowest_s = max(outcome.slowest_s, round(took, 3))
        outcome.most_mib = max(outcome.most_mib, round(peak_mib()))
        if failure is None and peak_mib() > MEMORY_MIB:
            failure = Failure(target.name, number, "memory", f"over {MEMORY_MIB} MiB")
        if failure is not None:
            outcome.note(failure)
        if peak_mib() > MEMORY_MIB:
            break
    report.send(asdict(outcome))


def fuzz(
    chosen: Sequence[Target],
    mutations: int,
    *,
    seed: int = SEED,
    seconds: float = math.inf,
    outcome: Outcome | None = None,
    progress: Callable[[Outcome], None] | None = None,
) -> Outcome:
    """Return what came of so many mutations, or those of so many seconds, read one after the other
    in children.

    `outcome`: of those that were read before.
    """
    outcome = outcome or Outcome()
    number, last = outcome.mutations, time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        while number < mutations and time.monotonic() < last:
            numbers = range(number, min(number + LIFE, mutations))
            number += _one_life(chosen, numbers, outcome, seed=seed, folder=Path(name))
            if progress:
                progress(outcome)
    return outcome


def in_turn(chosen: Sequence[Target]) -> tuple[Target, ...]:
    """Return the readers in the order in which they have their turns, as often as their shares
    demand.
    """
    return tuple(one for turn in range(3) for one in chosen if turn < one.share)


def _one_life(
    chosen: Sequence[Target], numbers: range, outcome: Outcome, *, seed: int, folder: Path
) -> int:
    """Read mutations in one child; add what came of it, and return how many were read.

    Work ends with the process: polars' threads do not survive a fork, so the parent must never have
    used them.
    """
    reports, report = FORK.Pipe(duplex=False)
    child = FORK.Process(target=read_all, args=(chosen, numbers, seed, folder, report))
    child.start()
    report.close()
    at, reported, hung = numbers.start, None, False
    with suppress(EOFError):  # it died
        while reported is None and not hung:
            if not reports.poll(HANGS_S):
                hung = True
                child.kill()
            elif isinstance(message := reports.recv(), int):
                at = message
            else:
                reported = message
    child.join()
    if reported is not None:
        return outcome.add(reported)
    why = "killed as it did not end" if hung else f"exit code {child.exitcode}"
    # it died at this one; those before are read
    outcome.note(Failure(chosen[at % len(chosen)].name, at, "died", why))
    outcome.mutations += at + 1 - numbers.start
    return at + 1 - numbers.start


def main() -> int:
    """Fuzz, print the result; 1 when a reader failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutations", type=int, default=1_000_000)
    parser.add_argument(
        "--recorded",
        type=Path,
        default=Path(os.environ.get("TACHOGRAPH_RECORDED", "../shared/data")),
    )
    parser.add_argument("--reader", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no longer than that")
    parser.add_argument(
        "--state", type=Path, help="file of what came of it so far: stopped, it goes on from there"
    )
    parser.add_argument(
        "--number", type=int, help="write this mutation of the one reader to stdout, read nothing"
    )
    options = parser.parse_args()
    if not options.recorded.is_dir():
        parser.error(f"no recorded inputs at {options.recorded}: name their folder with --recorded")
    chosen = by_name(options.recorded, options.reader)
    if options.number is not None:
        sys.stdout.buffer.write(mutation(chosen[0], options.number, options.seed))
        return 0
    begun = time.monotonic()
    before = kept(options.state)
    done = before.mutations

    def progress(now: Outcome) -> None:
        keep(now, options.state)
        rate = (now.mutations - done) / (time.monotonic() - begun)
        printed = (
            f"{now.mutations:,} of {options.mutations:,}, {rate:.0f}/s, "
            f"{len(now.failures)} kinds of failure"
        )
        sys.stderr.write(f"{printed}\n")

    outcome = fuzz(
        in_turn(chosen),
        options.mutations,
        seed=options.seed,
        seconds=options.minutes * 60,
        outcome=before,
        progress=progress,
    )
    if options.state is not None and outcome.mutations >= options.mutations:
        options.state.unlink()  # the next run begins anew
    result = as_json(outcome, chosen, seed=options.seed, seconds=time.monotonic() - begun)
    sys.stdout.write(f"{json.dumps(result, indent=1)}\n")
    return 1 if outcome.failures else 0


def kept(state: Path | None) -> Outcome:
    """Return what came of the mutations that were read before."""
    outcome = Outcome()
    if state is not None and state.exists():
        outcome.add(json.loads(state.read_text()))
    return outcome


def keep(outcome: Outcome, state: Path | None) -> None:
    """Write what came of it so far, in one step."""
    if state is not None:
        fresh = state.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(outcome)))
        fresh.replace(state)


def as_json(
    outcome: Outcome, chosen: Sequence[Target], *, seed: int, seconds: float
) -> dict[str, object]:
    """Return the result as it is printed and recorded."""
    return {
        "mutations": outcome.mutations,
        "seed": seed,
        "readers": [target.name for target in chosen],
        "refused": outcome.refused,
        "slowest_s": outcome.slowest_s,
        "most_mib": outcome.most_mib,
        "seconds": round(seconds),
        "failures": [
            asdict(failure) | {"times": outcome.failed[kind]}
            for kind, failure in outcome.failures.items()
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
