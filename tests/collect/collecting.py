"""A collection for tests: in this process, or, run as a program, in one of its own.

python collecting.py LAKE '{"count": 300, "every_s": 0.05}'
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from fake_feeds import Tape

from tachograph.catalog.config import CollectOptions
from tachograph.cli import end_process
from tachograph.collect.collector import Collection, CollectPlan, collect
from tachograph.collect.readers import PolledSource
from tachograph.collect.systemd import NO_NOTIFIER
from tachograph.lake.delta import Lake

QUIET = CollectOptions(listen="", analyze_s=3600, compact_s=3600)


def plan_of(
    lake: Path | str, sources: Sequence[PolledSource], config: CollectOptions = QUIET
) -> CollectPlan:
    """A plan whose children know the lake."""
    made = Lake.create(str(lake))
    made_plan = CollectPlan(
        made, sources, config, ["--lake", str(lake), "--quiet"], retry_s=(0.05, 0.2)
    )
    made_plan.folder.mkdir(parents=True, exist_ok=True)
    return made_plan


@contextmanager
def collecting(plan: CollectPlan) -> Iterator[list[str]]:
    """Collect for the time of the block, without a lock; yields what is reported."""
    reported: list[str] = []
    stopping = threading.Event()
    collection = Collection(plan, remark=reported.append, stopping=stopping, notifier=NO_NOTIFIER)
    thread = threading.Thread(target=collection.run)
    thread.start()
    try:
        yield reported
    finally:
        stopping.set()
        thread.join(60)
        assert not thread.is_alive(), "it does not stop"


def until(true: Callable[[], object], *, within_s: float = 120.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.05)  # what is asked for costs more than a wait


class Settings(msgspec.Struct):
    """Of the program."""

    count: int = 200
    sample_s: float = 0.002
    every_s: float = 0.05
    streams: tuple[str, ...] = ("tape:a", "tape:b")
    once: bool = False
    wait: bool = False
    collect: CollectOptions = QUIET


def main(lake: str, settings: Settings) -> None:
    sources = [
        PolledSource(stream, settings.every_s, Tape(stream, settings.count, settings.sample_s))
        for stream in settings.streams
    ]

    def say(words: str) -> None:
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()

    plan = plan_of(lake, sources, settings.collect)
    done = collect(plan, remark=say, narrate=say, once=settings.once, wait=settings.wait)
    say("stopped" if done else "never began")


if __name__ == "__main__":
    main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Settings))
    end_process(0)
