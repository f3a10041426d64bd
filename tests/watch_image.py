"""The picture of the fleet on the page of `watch`: 64 simulated GPUs by job after 50 seconds, as
Chromium draws it.

    python tests/watch_image.py

writes docs/images/watch.png.
"""

from __future__ import annotations

import re

from page_image import IMAGES, draw_page
from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import GpuHistory
from tachograph.judge.workload.settings import WorkloadSettings
from tui_screens import Clock, app_of, screen

KEYS = ("g", "g", "down", "down")  # by job; the second GPU of the first


def write_png(svg: str) -> None:
    """Draw the screen with the fonts that are installed: its own are on the network."""
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace(
        "Fira Code", "DejaVu Sans Mono"
    )
    width, height = (
        round(float(size)) for size in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    )
    page = f'<meta charset="utf-8"><body style="margin:0">{svg}'
    draw_page(page, IMAGES / "watch.png", size=(width, height), scale=1200 / width)


def main() -> None:
    """Write the picture."""
    clock = Clock()
    source = SimulatedSource(64, clock=clock, faults=True)
    judge = Monitor(source.about, settings=WorkloadSettings(), history=GpuHistory())
    screen(
        *KEYS,
        size=(120, 36),
        polls=51,
        app=app_of(clock=clock, source=source, judge=judge),
        picture=write_png,
    )


if __name__ == "__main__":
    main()
