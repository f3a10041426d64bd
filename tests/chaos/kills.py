"""Kills every command again and again, starts it again, and compares: `make chaos` (KILLS=1000).
Prints a JSON object.

A trial takes the lake as it was before a step, kills the step several times, lets it finish and
compares what readers see with a lake whose writers were never killed. Kills come at moments by
chance and before changes of files, spread evenly over those that a step makes. Every sixth trial
runs several commands at once, kills each of them, and compares what every history must end in. 1
when some trial ended otherwise.

    python tests/chaos/kills.py --kills 20
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["POLARS_MAX_THREADS"] = "1"  # before polars is imported: lakes are small

import story
from child import KILLED, Changes, Child, Kill

from tachograph.catalog.compiled import Compiled
from tachograph.pipeline import kernel

SEED = 20260301
DEEPEST = 4  # kills of one step before it may finish
AT_ONCE = (
    "ingest late samples",
    "ingest late accounting",
    "compact again",
    "analyze what is new",
    "stream",
    "collect",
)
TOGETHER_EVERY = 6
# imported before children are forked, each of which needs them at once
WARM = (
    "pipeline.run", "cli.analyze", "cli.compact", "cli.ingest", "sources.ldms", "sources.sacct",
    "sources.allocation_map", "collect.collector",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reference:
    """A step that was never killed: the lake before, what readers see after, seconds of processor
    time it took, its changes of files.
    """

    step: story.Step
    before: Path
    after: dict[str, str]
    seconds: float
    changes: int


@dataclass(slots=True)
class Outcome:
    """What came of the trials so far."""

    kills: Counter[str] = field(default_factory=Counter)  # by step
    kinds: Counter[str] = field(default_factory=Counter)  # moments and changes
    trials: int = 0
    together: int = 0
    restarts: int = 0
    orphans: int = 0  # files that killed steps left, which no log names
    wrong: list[dict[str, Any]] = field(default_factory=list)


class Chaos:
    """The trials: a folder for lakes, a source of chance, and what came of it so far."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.folder, self.seed, self.chance = folder, seed, random.Random(seed)
        self.printed = folder / "said.txt"
        self.steps = story.run_story(folder / "inputs")
        self.outcome = Outcome()
        self.references: list[Reference] = []
        self.settled: dict[str, str] = {}

    def prepare(self) -> None:
        """Go the whole way once, never killed, and keep the lake of before each step."""
        lake = self.folder / "never"
        lake.mkdir()
        for place, step in enumerate(self.steps):
            before = Path(shutil.copytree(lake, self.folder / f"before-{place}"))
            if step.name == story.EXPIRE:  # no history of several at once expires
                whole = Path(shutil.copytree(lake, self.folder / "settled"))
                self._must(partial(story.settle, whole), "settle")
                self.settled = self.seen(whole)
            used_s = _of_children_s()
            changes, signatures = self._in_child(partial(_run_and_note, step, lake))
            seconds = _of_children_s() - used_s
            load_compiled(signatures)
            self.references.append(Reference(step, before, self.seen(lake), seconds, changes))

    def trial(self) -> None:
        """One trial."""
        if (self.outcome.trials + 1) % TOGETHER_EVERY:
            alone = self.outcome.trials - self.outcome.together
            reference = self.references[alone % len(self.references)]
            self.one_step(
                reference, [self._kill(reference) for _ in range(self.chance.randint(1, DEEPEST))]
            )
        else:
            self.several_steps()

    def kill_at_changes(self, name: str, kills: int) -> None:
        """A trial of one step, whose kills are spread evenly over its changes of files."""
        (reference,) = [one for one in self.references if one.step.name == name]
        self.one_step(
            reference,
            [Kill(at_change=1 + reference.changes * (i + 1) // (kills + 1)) for i in range(kills)],
        )

    def one_step(self, reference: Reference, kills: Sequence[Kill]) -> None:
        """A trial of one step, killed again and again."""
        self.outcome.trials += 1
        lake = Path(shutil.copytree(reference.before, self.folder / "lake"))
        for kill in kills:
            if self._run(reference.step, lake, kill).wait() != KILLED:
                break
            self._count(reference.step, kill)
        self._finish(reference.step, lake)
        self._compare(lake, reference.after, reference.step.name, kills)

    def several_steps(self, deepest: int = DEEPEST) -> None:
        """Some steps at once over a lake that lacks them; what they leave, and what is left to
        do, in the end.
        """
        self.outcome.trials += 1
        self.outcome.together += 1
        known = {reference.step.name: reference for reference in self.references}
        lake = Path(shutil.copytree(known["stream"].before, self.folder / "lake"))
        left = {
            name: [self._kill(known[name], moments=True) for _ in range(deepest)]
            for name in AT_ONCE
        }
        every = [kill for kills in left.values() for kill in kills]
        running = {name: self._run(known[name].step, lake, left[name].pop()) for name in AT_ONCE}
        while running:
            for name, child in list(running.items()):
                code = child.poll()
                if code is None:
                    continue
                del running[name]
                if code == KILLED:
                    self._count(known[name].step, child.kill)
                    running[name] = self._run(
                        known[name].step, lake, left[name].pop() if left[name] else None
                    )
                elif code:
                    self._wrong(name, every, {"code": code, "said": self._last_words()})
            time.sleep(0.001)
        for name in AT_ONCE:
            self._finish(known[name].step, lake)
        self._must(lambda: story.settle(lake), "settle")
        self._compare(lake, self.settled, "together", every, settled=True)

    def _kill(self, reference: Reference, *, moments: bool = False) -> Kill:
        """A kill at a moment, or at a change of files; those of successive kills are spread
        evenly.
        """
        if moments or self.chance.random() < 0.5:
            return Kill(after_s=self.chance.uniform(0, reference.seconds))
        place = (
            self.outcome.kinds["change"] * 0.6180339887498949 + self.chance.random() * 0.01
        ) % 1.0
        return Kill(at_change=1 + int(place * reference.changes))

    def _run(self, step: story.Step, lake: Path, kill: Kill | None = None) -> Child:
        self.outcome.restarts += 1
        return Child(lambda: step.work(lake), self.printed, kill)

    def _finish(self, step: story.Step, lake: Path) -> None:
        self._must(lambda: step.work(lake), step.name)

    def _must(self, work: Callable[[], int], name: str) -> None:
        """Do it in a child, which must end well."""
        code = Child(work, self.printed).wait()
        if code:
            self._wrong(name, [], {"code": code, "said": self._last_words()})

    def _count(self, step: story.Step, kill: Kill) -> None:
        self.outcome.kills[step.name] += 1
        self.outcome.kinds["change" if kill.at_change is not None else "moment"] += 1

    def _compare(
        self,
        lake: Path,
        after: dict[str, str],
        name: str,
        kills: Sequence[Kill],
        *,
        settled: bool = False,
    ) -> None:
        found, left = self._in_child(lambda: (story.seen(lake), story.orphans(lake)), ({}, []))
        different = {
            what: [found.get(what), after.get(what)]
            for what in {*found, *after}
            if found.get(what) != after.get(what)
        }
        if different:
            self._wrong(name, kills, different)
        self.outcome.orphans += len(left)
        if settled and left:  # a settled lake was vacuumed
            self._wrong(name, kills, {"orphans": left})
        if different and len(self.outcome.wrong) == 1:
            shutil.copytree(lake, self.folder / "wrong")
        shutil.rmtree(lake)

    def _wrong(self, name: str, kills: Sequence[Kill], different: dict[str, Any]) -> None:
        self.outcome.wrong.append(
            {
                "trial": self.outcome.trials,
                "step": name,
                "kills": [str(kill) for kill in kills],
                "different": different,
            }
        )

    def seen(self, lake: Path) -> dict[str, str]:
        """Return what readers see of a lake."""
        return dict(self._in_child(lambda: story.seen(lake)))

    def _in_child(self, requested: Callable[[], Any], default: Any = None) -> Any:
        """What a child finds out; `default` where it fails."""
        answer = self.folder / "answer.pickle"

        def work() -> int:
            answer.write_bytes(pickle.dumps(requested()))
            return 0

        answer.write_bytes(pickle.dumps(default))
        self._must(work, "look")
        return pickle.loads(answer.read_bytes())

    def _last_words(self) -> str:
        return self.printed.read_text(errors="replace")[-600:]


def prepared(folder: Path, *, seed: int) -> Chaos:
    """Return trials over a story that ran once to its end, in a process from which children
    start at once.
    """
    warm()
    chaos = Chaos(folder, seed=seed)
    chaos.prepare()
    return chaos


def warm() -> None:
    """Import what children need at once."""
    for name in WARM:
        import_module(f"tachograph.{name}")


def compiled_signatures() -> dict[str, list[Any]]:
    """Return what this process has compiled, for `load_compiled`: {function: signatures}."""
    functions = {
        name: function for name, function in vars(kernel).items() if isinstance(function, Compiled)
    }
    return {
        name: function.dispatcher.signatures
        for name, function in functions.items()
        if function.made
    }


def load_compiled(signatures: Mapping[str, Sequence[Any]]) -> None:
    """Load compiled functions into this process, so that its children need not: it takes a
    second.
    """
    for name, of_function in signatures.items():
        for signature in of_function:
            getattr(kernel, name).dispatcher.compile(signature)


def _of_children_s() -> float:
    """Processor time of the children that were waited for, in seconds."""
    times = os.times()
    return times.children_user + times.children_system


def _run_and_note(step: story.Step, lake: Path) -> tuple[int, dict[str, list[Any]]]:
    """Do a step; return how often it changes files, and what it has compiled. Errors:
    RuntimeError.
    """
    changes = Changes()
    sys.addaudithook(changes)
    if code := step.work(lake):
        raise RuntimeError(f"{step.name}: exit code {code}")
    return changes.number, compiled_signatures()


def main() -> int:
    """Kill until there were enough; print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no longer than that")
    parser.add_argument("--keep", type=Path, help="a new folder for the lakes, which stay there")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(exist_ok=True)
    try:
        result = kill(prepared(folder, seed=options.seed), options.kills, minutes=options.minutes)
    finally:
        if options.keep is None:
            shutil.rmtree(folder)
    sys.stdout.write(f"{json.dumps(result, indent=1)}\n")
    return 1 if result["wrong"] else 0


def kill(chaos: Chaos, kills: int, *, minutes: float = math.inf) -> dict[str, Any]:
    """Kill until there were enough, or something is wrong; return the result as it is printed
    and recorded.
    """
    begun = time.monotonic()
    last = begun + minutes * 60
    while (
        chaos.outcome.kills.total() < kills and not chaos.outcome.wrong and time.monotonic() < last
    ):
        chaos.trial()
        report(chaos.outcome, kills, begun)
    return as_json(chaos.outcome, seed=chaos.seed, seconds=time.monotonic() - begun)


def report(outcome: Outcome, of: int, begun: float) -> None:
    """Write progress to stderr, now and then."""
    if outcome.trials % 20 == 0:
        kills, passed = outcome.kills.total(), time.monotonic() - begun
        sys.stderr.write(f"{kills:,} of {of:,} kills, {outcome.trials} trials, {passed:.0f} s\n")


def as_json(outcome: Outcome, *, seed: int, seconds: float) -> dict[str, Any]:
    """Return the result as it is printed and recorded."""
    return {
        "kills": outcome.kills.total(),
        "seed": seed,
        "kills_of_step": dict(outcome.kills),
        "kills_at": dict(outcome.kinds),
        "trials": outcome.trials,
        "trials_of_several_at_once": outcome.together,
        "starts": outcome.restarts,
        "orphans_never_counted": outcome.orphans,
        "seconds": round(seconds),
        "wrong": outcome.wrong,
    }


if __name__ == "__main__":
    sys.exit(main())
