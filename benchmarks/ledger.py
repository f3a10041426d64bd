"""What a round of `tachograph act` costs with a ledger of many lines: processor time and memory.

    python benchmarks/ledger.py [LINES]

The lines are of comments, two a job, of which the last third is younger than 90 days.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tachograph.annexes.act.ledger import LEDGER_FILE, ActionLedger, LedgerIndex

NOW = datetime(2026, 11, 27, tzinfo=UTC)
STEPS = 6  # of a round


def write(folder: Path, lines: int) -> None:
    """Write a ledger of so many lines over 270 days."""
    with (folder / LEDGER_FILE).open("w", encoding="utf-8") as ledger:
        for number in range(lines // 2):
            noted = (NOW - timedelta(days=270) * (1 - 2 * number / lines)).isoformat()
            head = f'{{"t":"{noted}","key":"comment:alpha-{number}-1795000000","kind":"comment"'
            why = f'"target":"job {number}","why":"1 of 8 GPUs used; 83.1 GPU-h unused."'
            ledger.write(f'{head},"state":"begun",{why}}}\n')
            ledger.write(f'{head},"state":"done",{why},"result":"1,204 characters"}}\n')


def megabytes() -> float:
    """Return the memory of this process at its peak, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print a row per round."""
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, lines)
        index = LedgerIndex()
        print(
            f"{lines:,} lines, {(folder / LEDGER_FILE).stat().st_size >> 20} MiB; "
            f"{megabytes():.0f} MiB before"
        )
        for number in range(1, 4):
            begin = time.process_time()
            for step in range(STEPS):
                with ActionLedger(folder, clock=lambda: NOW, index=index) as ledger:
                    if step == 0:
                        ledger.archive()
            seconds = time.process_time() - begin
            print(
                f"round {number}: {seconds:.2f} s of processor time, {megabytes():.0f} MiB at "
                "the peak"
            )


if __name__ == "__main__":
    main()
