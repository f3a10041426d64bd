"""Prolog and epilog of every cluster here: the project's own one, and one that reports who holds
what right now.
"""

from __future__ import annotations

from pathlib import Path

from servers.slurm.plan import Plan

PROJECTS = Path(__file__).resolve().parents[3] / "contrib" / "slurm" / "gpu-map.sh"

_HELD = """\
#!/bin/sh
# {event}: a file of {hooks}/held/NODE for every GPU that is held, with the id of the job as Slurm tells it
for gpu in $(echo "$SLURM_JOB_GPUS" | tr , ' '); do
    file='{hooks}/held/'"$SLURMD_NODENAME/$gpu"
    {what}
done
"""
_MAP = """\
#!/bin/sh
TACHOGRAPH_MAP_FOLDER='{hooks}/gpu-map' exec {projects}
"""


def write_hooks(plan: Plan) -> None:
    """Write the scripts where `slurm_conf` looks for them."""
    for node in plan.nodes:
        (plan.hooks / "held" / node).mkdir(parents=True)
    for event, what in (("prolog", 'echo "$SLURM_JOB_ID" >"$file"'), ("epilog", 'rm -f "$file"')):
        folder = plan.hooks / f"{event}.d"
        folder.mkdir()
        _write(folder / "held", _HELD.format(event=event, hooks=plan.hooks, what=what))
        _write(folder / "map", _MAP.format(hooks=plan.hooks, projects=PROJECTS))


def _write(script: Path, content: str) -> None:
    script.write_text(content)
    script.chmod(0o755)
