"""Kills and full disks over one story, which takes longest to run. Prints {"kills": ..., "disks":
...} as JSON.

Steps that run the same code are represented by one: the others are killed, six at once, in the
trial of several steps.

    python tests/chaos/in_short.py
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from disks import fill
from kills import SEED, as_json, prepared
from story import KILLED_ALONE

ROOM_KIB = {
    "ingest samples": [20],
    "ingest accounting": [4],
    "analyze": [60],
    "compact again": [100],
}


def main() -> int:
    """Run both, print what came of them."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        chaos = prepared(Path(name), seed=SEED)
        for step in KILLED_ALONE:
            chaos.kill_at_changes(step, 2)
        chaos.several_steps(deepest=2)
        kills = as_json(chaos.outcome, seed=SEED, seconds=time.monotonic() - begun)
        result = {"kills": kills, "disks": fill(chaos, ROOM_KIB)}
    sys.stdout.write(f"{json.dumps(result, indent=1)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
