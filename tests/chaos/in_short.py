"""Kills and full disks over one story, which takes longest to run. Prints {"kills": ..., "disks": ...} as JSON.

python tests/chaos/in_short.py --kills 20 --sizes 1
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from disks import fill
from kills import SEED, as_json, kill, prepared
from story import EXPIRE, FORGET


def main() -> int:
    """Run both, print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--sizes", type=int, default=1, help="disks per step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        chaos = prepared(Path(name), seed=SEED)
        seconds = kill(chaos, options.kills)["seconds"]
        for name in (EXPIRE, FORGET):
            chaos.trials_of(name, 4)
        result = {"kills": as_json(chaos.outcome, seed=SEED, seconds=seconds), "disks": fill(chaos, options.sizes)}
    sys.stdout.write(f"{json.dumps(result, indent=1)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
