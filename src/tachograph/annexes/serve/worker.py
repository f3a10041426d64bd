"""A worker process of the server: computes one answer at a time, with a memory limit.

python -m tachograph.annexes.serve.worker PARENT DESCRIPTOR
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import resource
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.annexes.serve.workers import WorkerError
from tachograph.catalog.devices import set_site_devices
from tachograph.catalog.errors import LakeError, TachographError
from tachograph.collect.child import end_with_parent
from tachograph.lake.delta import Lake

_MIB = 1 << 20
_MOST_KEPT = 0.75  # of its memory: a worker that keeps more after an answer is replaced


def _data_bytes() -> int:
    """Private memory of this process that can be written, as RLIMIT_DATA counts it."""
    with Path("/proc/self/statm").open(encoding="ascii") as facts:
        return int(facts.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def main(argv: Sequence[str]) -> None:
    """Answer until the server ends: its process id, the descriptor of the connection to it."""
    end_with_parent(int(argv[0]))
    connection = Connection(int(argv[1]))
    location, configuration, cache = connection.recv()
    set_site_devices(configuration.device)
    served = ServedLake(Lake(location), configuration, cache=cache)
    memory, answer_bytes = (
        configuration.serve.worker_mib * _MIB,
        configuration.serve.answer_mib * _MIB,
    )
    with contextlib.suppress(LakeError):  # the first view raises it
        served.refresh()
    before = _data_bytes()  # with the jobs of the lake, which every worker has
    resource.setrlimit(resource.RLIMIT_DATA, (before + memory, before + memory))

    def progress(doing: str, done: int, total: int) -> None:
        connection.send(("progress", (doing, done, total)))

    while True:
        try:
            function, *arguments = connection.recv()
        except EOFError:
            return
        try:
            with contextlib.suppress(LakeError):  # the version before, else the view raises it
                served.refresh()
            content = pickle.dumps(function(served, progress, *arguments))
            if len(content) > answer_bytes:
                what = (
                    f"the answer has {len(content) / _MIB:,.0f} MiB, at most "
                    f"{answer_bytes / _MIB:,.0f} MiB are sent"
                )
                raise WorkerError(what, do="choose fewer jobs, rows or fields")
            connection.send(("answer", (content, _data_bytes() - before < _MOST_KEPT * memory)))
        except TachographError as problem:
            connection.send(("error", problem))
        except MemoryError:
            return
        except Exception:  # the boundary of one answer
            logging.getLogger("tachograph.annexes.serve").exception("an answer of a worker")
            connection.send(("error", RuntimeError("a defect in a worker: see the log")))


if __name__ == "__main__":
    main(sys.argv[1:])
