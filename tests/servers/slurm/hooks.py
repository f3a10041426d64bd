"""Prolog and epilog of every cluster here: they write down what Slurm itself says it gave to whom."""

from __future__ import annotations

from servers.slurm.plan import Plan

_HOOK = """\
#!/bin/sh
# {event}: files of held/NODE name the job that holds a GPU; gpu-map.log is the map that the documentation describes
for gpu in $(echo "$SLURM_JOB_GPUS" | tr , ' '); do
    {what}
done
echo "$(date +%s) {event} job=$SLURM_JOB_ID node=$SLURMD_NODENAME gpus=$SLURM_JOB_GPUS" >> '{folder}/gpu-map.log'
"""


def write_hooks(plan: Plan) -> None:
    """Write both scripts, and links to those of the plan, where `slurm_conf` looks for them."""
    for node in plan.nodes:
        (plan.hooks / "held" / node).mkdir(parents=True)
    place = f"'{plan.hooks}/held/'\"$SLURMD_NODENAME/$gpu\""
    for event, what in (("prolog", f'echo "$SLURM_JOB_ID" > {place}'), ("epilog", f"rm -f {place}")):
        scripts = plan.hooks / f"{event}.d"
        scripts.mkdir()
        script = scripts / "held"
        script.write_text(_HOOK.format(event=event, folder=plan.hooks, what=what))
        script.chmod(0o755)
        for own in plan.prologs if event == "prolog" else plan.epilogs:
            (scripts / own.name).symlink_to(own)
