"""What a submit line asks for: features, the memory tier of the GPU, whole nodes.

Slurm stores the arguments joined by blanks, mostly without their quotes; what follows the program or `--wrap`
belongs to the job and is not looked at. Options by sbatch(1), salloc(1), srun(1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_LONGEST = 20_000  # characters of a submit line that are looked at
_TOKEN = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
_INTERESTING = re.compile(r"-C|--const|--excl|gpu|-G")
_SHORT_WITH_VALUE = frozenset("AaBbCcDdeFGiJLMmNnopqrSTtwx")
_LONG_OPTIONS = (
    "account array batch bb bbf begin chdir cluster-constraint clusters comment constraint container cores-per-socket "
    "core-spec cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude export "
    "export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres "
    "gres-flags hint input job-name jobid licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu "
    "mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket "
    "open-mode output partition power prefer priority profile qos relative reservation segment signal "
    "sockets-per-node switches task-prolog task-epilog thread-spec threads threads-per-core time time-min tmp "
    "tres-per-task uid wait-all-nodes wckey"
)
_LONG_WITH_VALUE = frozenset(_LONG_OPTIONS.split())


@dataclass(frozen=True, slots=True)
class Request:
    """What a submit line asks for; `exclusive` None: it does not say."""

    constraint: str | None = None
    exclusive: bool | None = None
    asks_for_gpus: bool = False


@lru_cache(maxsize=8192)
def submitted(submit_line: str, het_offset: int | None = None) -> Request:
    """Return what a submit line asks for, of the component `het_offset` where it has several (` : `).

    >>> submitted("sbatch -N2 -C gpu&hbm80g --exclusive job.sh -C mine").constraint
    'gpu&hbm80g'
    >>> submitted("sbatch -N2 --exclusive=user job.sh").exclusive
    """
    if not _INTERESTING.search(submit_line, 0, _LONGEST):
        return Request()
    components = _components(_TOKEN.findall(submit_line[:_LONGEST])[1:])
    if len(components) == 1:
        return _request(components[0])
    if het_offset is None or het_offset >= len(components):
        return Request()
    return _request(components[het_offset])


def _components(tokens: list[str]) -> list[list[tuple[str, str]]]:
    """Options (name, value) of each component, up to the program."""
    components: list[list[tuple[str, str]]] = [[]]
    place = 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        following = tokens[place] if place < len(tokens) else ""
        if token == ":":
            components.append([])
        elif token == "--wrap" or token.startswith("--wrap=") or not token.startswith("-") or token == "--":
            break
        elif token.startswith("--"):
            name, mark, value = token[2:].partition("=")
            if not mark and name in _LONG_WITH_VALUE:
                value = following
                place += 1
            components[-1].append((name, value.strip("\"'")))
        else:
            name, value, used = _short_option(token, following)
            place += used
            components[-1].append((name, value.strip("\"'")))
    return components


def _short_option(token: str, following: str) -> tuple[str, str, int]:
    """Name and value of the option with a value in a cluster of short ones, and how many further tokens it took."""
    for place, letter in enumerate(token[1:], start=1):
        if letter in _SHORT_WITH_VALUE:
            rest = token[place + 1 :]
            return (letter, rest, 0) if rest else (letter, following, 1)
    return token[1:], "", 0


def _request(options: list[tuple[str, str]]) -> Request:
    constraint: str | None = None
    exclusive: bool | None = None
    asks = False
    for name, value in options:
        if name == "C" or (len(name) > 4 and "constraint".startswith(name)):
            constraint = value or None
        elif len(name) > 3 and "exclusive".startswith(name):
            exclusive = True if not value or value == "exclusive" else None
        elif (
            name in {"G", "gpus"}
            or name.startswith("gpus-per-")
            or (name in {"gres", "tres-per-task"} and "gpu" in value)
        ):
            asks = True
    return Request(constraint, exclusive, asks)


_TIER = re.compile(r"(?<![a-z0-9])hbm_?(\d{2,4})g", re.ASCII)


def hbm_tier(constraint: str | None) -> str | None:
    """Return the memory tier a constraint asks for; None where it names none, or leaves the choice.

    >>> hbm_tier("gpu&hbm80g"), hbm_tier("[hbm40g|hbm80g]"), hbm_tier("(gpu&hbm40g)"), hbm_tier("gpu")
    ('80g', None, '40g', None)
    """
    tiers = set(_TIER.findall(constraint.lower())) if constraint else set()
    return f"{tiers.pop()}g" if len(tiers) == 1 else None
