"""Allocator settings that must be applied before Polars is imported.

Imports nothing else, so that it can come first.
"""

from __future__ import annotations

import os

NAME = "_RJEM_MALLOC_CONF"
# Freed memory is kept for a minute. By default it goes back after half a second, and partitions
# take it anew page by page: that is a third of the processor time of reading them. Source:
# jemalloc, TUNING.md (decay of dirty pages).
KEEP = "dirty_decay_ms:60000,muzzy_decay_ms:-1"
# One arena for all threads: what one frees the others take. Of an ingest, half the pages and a
# tenth more memory.
KEEP_IN_ONE_ARENA = f"{KEEP},narenas:1"
# What it puts before all else, for child processes, too.
OF_POLARS = ("dirty_decay_ms:500", "muzzy_decay_ms:1000")


def keep_freed_memory(setting: str = KEEP) -> None:
    """Make the allocator keep freed memory; without effect once Polars is loaded.

    What the environment sets itself comes last and so counts.
    """
    implied = {"", *OF_POLARS, *setting.split(",")}
    options = [part for part in os.environ.get(NAME, "").split(",") if part not in implied]
    os.environ[NAME] = ",".join([setting, *options])
