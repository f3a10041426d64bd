"""What stands in for a GPU in a rehearsal: NVML of the tests, and CUPTI of the tests where this
version has one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

import proof_rehearsal
from day_tools import REPOSITORY, DayTools

_PM = REPOSITORY / "tests" / "pm_sampling"


def stand_ins(tools: DayTools) -> DayTools:
    """Return the same with stand-ins in the place of libraries."""
    found = {**tools.environment, **proof_rehearsal.environment(tools.out / "scratch" / "nvml")}
    found["PYTHONPATH"] = os.pathsep.join(
        [tools.environment["PYTHONPATH"], str(REPOSITORY / "tests")]
    )
    tools = replace(tools, environment=found)
    return _with_cupti(tools, tools.out / "scratch" / "cupti") if _PM.is_dir() else tools


def _with_cupti(tools: DayTools, folder: Path) -> DayTools:
    """With the stand-in of CUPTI as the packages of PM sampling."""
    specification = importlib.util.spec_from_file_location("pm_node", _PM / "pm_node.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["pm_node"] = module
    specification.loader.exec_module(module)
    folder.mkdir(parents=True, exist_ok=True)
    environment = module.PmNode(folder).environment()
    added = {module.VARIABLE: environment[module.VARIABLE]}
    site = folder / "site"
    site.mkdir(exist_ok=True)
    for source in (module.STAND_IN, folder / "installed"):
        for entry in source.iterdir():
            link = site / entry.name
            if not link.exists():
                link.symlink_to(entry)
    return replace(tools, environment={**tools.environment, **added}, pm_site=site)
