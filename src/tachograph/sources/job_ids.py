"""Job ids of any scheduler, as maps, labels and samples write them.

Slurm: `123`, `123_4`, `123+1`, with a step `123.0`, `123.batch`. PBS: `123.server`,
`123[4].server`. LSF: `123[4]`. Flux: `f2Ab9` (`ƒ2Ab9` is the same). Kubernetes: UIDs, and pods as
`POD.NAMESPACE`. Commands of Slurm are given Slurm's own ids only (`slurm.arguments`).
"""

from __future__ import annotations

import re
from functools import lru_cache

# job and step of an id of Slurm; "123.server" is no step but an id of PBS
SLURM_JOB = (
    r"^([1-9]\d{0,17}(?:_\d{1,10}|\+\d{1,10})?)"
    r"(?:\.(\d{1,10}(?:\+\d{1,10})?|batch|extern|interactive))?$"
)
# No blank, quote, bracket of markup, slash or colon: ids are parts of keys and of addresses.
ANY_JOB = r"^(?:ƒ|[A-Za-z0-9])[A-Za-z0-9._+\[\]-]{0,252}$"
# A word is no id, and 0 is a mark for none; names of pods need no digit.
IS_NAMED = r"[1-9]|\.[0-9-]*[A-Za-z]"
_SLURM = re.compile(SLURM_JOB, re.ASCII)
_ANY = re.compile(ANY_JOB, re.ASCII)


def plain_job_id(written: str) -> str:
    """Return an id with Flux's letter in ASCII, as its tools accept it.

    >>> plain_job_id("ƒ2Ab9"), plain_job_id("123.server")
    ('f2Ab9', '123.server')
    """
    return f"f{written[1:]}" if written.startswith("ƒ") else written


@lru_cache(maxsize=1 << 14)  # labels of exporters repeat with every scrape
def job_and_step(written: str) -> tuple[str, str | None] | None:
    """Return the job id and the step, if one is named; None for what is no job id.

    >>> job_and_step("123.batch"), job_and_step("123.server"), job_and_step("ƒ2Ab9")
    (('123', 'batch'), ('123.server', None), ('f2Ab9', None))
    >>> job_and_step("two words 7"), job_and_step("word")
    (None, None)
    """
    text = written.strip()
    slurm = _SLURM.match(text)
    if slurm:
        return slurm[1], slurm[2]
    if _ANY.match(text) and re.search(IS_NAMED, text):
        return plain_job_id(text), None
    return None


def is_slurm_job(written: str) -> bool:
    """Return whether an id has the form of Slurm's, with or without a step.

    >>> is_slurm_job("123_4"), is_slurm_job("123[4]")
    (True, False)
    """
    return _SLURM.match(written) is not None
