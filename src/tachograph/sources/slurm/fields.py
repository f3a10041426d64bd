"""Single values as Slurm writes them: job ids, states, TRES, exit codes, counts, durations.

Sources: sacct(1), squeue(1), scontrol(1); the shapes of Slurm 21.08 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tachograph.units import slurm_duration_s


class BadRowError(ValueError):
    """A row that cannot be read; `reason` is what it is counted under. Never leaves the reader."""

    def __init__(self, reason: str, column: str = "") -> None:
        self.reason = reason
        self.column = column
        super().__init__(f"{reason} {column}".strip())


# what Slurm writes where there is nothing, lower case
ABSENT = frozenset({"", "unknown", "none", "n/a", "(null)", "none assigned", "not set"})


def absent(written: str) -> bool:
    """Return whether Slurm wrote one of its words for "nothing".

    >>> absent("Unknown"), absent("None assigned"), absent("gpu01")
    (True, True, False)
    """
    return written.strip().lower() in ABSENT


@dataclass(frozen=True, slots=True)
class JobId:
    """A job id taken apart. `raw_told` False: the export has no JobIDRaw, the display id stands in for it."""

    raw: str
    display: str | None = None
    array_job_id: str | None = None
    array_task_id: int | None = None
    het_job_id: str | None = None
    het_offset: int | None = None
    is_step: bool = False
    raw_told: bool = True


def told_id(
    raw: int | None,
    *,
    array: int | None,
    task: int | None,
    het: int | None,
    offset: int | None,
    waiting: str | None = None,
) -> JobId:
    """Return the parts of an id that Slurm tells as numbers; 0 means none. `waiting`: tasks that do not run yet.

    >>> told_id(14, array=3, task=0, het=0, offset=None).display
    '3_0'
    >>> told_id(12, array=0, task=None, het=11, offset=1).display
    '11+1'

    Errors: BadRowError without a raw id.
    """
    if not raw or raw < 0:
        raise BadRowError("bad_job_id")
    display = None
    if array and (task is not None or waiting):
        display = f"{array}_{task}" if task is not None else f"{array}_[{waiting}]"
    elif het and offset is not None:
        display = f"{het}+{offset}"
    return JobId(
        raw=str(raw),
        display=display,
        array_job_id=str(array) if array else None,
        array_task_id=task if array else None,
        het_job_id=str(het) if het else None,
        het_offset=offset if het else None,
    )


_DISPLAY = re.compile(r"([1-9]\d{0,17})(?:_(\d{1,10}|\[[^\]]*\](?:%\d+)?)|\+(\d{1,10}))?(?:\.(\S+))?", re.ASCII)
_RAW = re.compile(r"([1-9]\d{0,17})(?:\.(\S+))?", re.ASCII)


def job_id(display: str, raw: str = "") -> JobId:
    """Return the parts of a job id: `123`, `123_4` (array), `123_[5-9%2]` (not yet split), `123+1` (het), `123.batch`.

    >>> parts = job_id("3_0", "14"); parts.raw, parts.display, parts.array_job_id, parts.array_task_id
    ('14', '3_0', '3', 0)
    >>> job_id("11+1", "12").het_offset, job_id("123.batch").is_step, job_id("123").display
    (1, True, None)

    Without a raw id the display id of a task or component is the key: it is unique, but not what the nodes know.
    Errors: BadRowError for anything else.
    """
    display, raw = display.strip(), raw.strip()
    shown = _DISPLAY.fullmatch(display) if display else None
    told = _RAW.fullmatch(raw) if raw else None
    if (display and not shown) or (raw and not told) or not (shown or told):
        raise BadRowError("bad_job_id")
    step = bool((shown and shown[4]) or (told and told[2]))
    if shown is None:
        assert told is not None
        return JobId(told[1], is_step=step)
    base, task, offset, _ = shown.groups()
    split = bool(task) and not task.startswith("[")
    composed = split or bool(offset)
    return JobId(
        raw=told[1] if told else f"{base}_{task}" if split else f"{base}+{offset}" if offset else base,
        display=display[: shown.end(3) if offset else shown.end(2)] if task or offset else None,
        array_job_id=base if task else None,
        array_task_id=int(task) if split else None,
        het_job_id=base if offset else None,
        het_offset=int(offset) if offset else None,
        is_step=step,
        raw_told=bool(told) or not composed,
    )


STATES = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
    *("BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REQUEUED", "RESIZING", "REVOKED", "CONFIGURING", "COMPLETING"),
    *("STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"),
)
_SHORT_FORMS = "PD R S CD CA F TO NF PR BF DL OOM RQ RS RV CF CG ST SI SO SE RH RF RD"  # squeue(1), in this order
_SHORT = dict(zip(_SHORT_FORMS.split(), STATES, strict=True))
_STATE = re.compile(r"[A-Z][A-Z_]*")


@lru_cache(maxsize=1024)
def base_state(written: str) -> str | None:
    """Return the base state; who cancelled is left out, a state cut off by sacct is completed.

    >>> base_state("CANCELLED by 1234"), base_state("OUT_OF_ME+"), base_state("PD"), base_state("")
    ('CANCELLED', 'OUT_OF_MEMORY', 'PENDING', None)

    Errors: BadRowError for what cannot be a state.
    """
    words = written.split(maxsplit=1)
    if not words or absent(written):
        return None
    word = words[0].upper()
    if word.endswith("+"):
        whole = [state for state in STATES if state.startswith(word[:-1])]
        word = whole[0] if len(whole) == 1 else word.rstrip("+")
    if len(word) > 40 or not _STATE.fullmatch(word):
        raise BadRowError("bad_state", "state")
    return _SHORT.get(word, word)


@lru_cache(maxsize=8192)
def _tres(written: str) -> tuple[tuple[str, int], ...]:
    pairs = []
    for part in written.split(","):
        name, mark, value = part.rpartition("=")
        if not mark:
            raise BadRowError("bad_tres", "gpus")
        name = name.strip().lower()
        if name in {"cpu", "node"} or name == "gres/gpu" or name.startswith("gres/gpu:"):
            if not re.fullmatch(r"\d{1,9}", value.strip(), re.ASCII):
                raise BadRowError("bad_tres", "gpus")
            pairs.append((name, int(value)))
    return tuple(pairs)


def tres(written: str) -> dict[str, int]:
    """Return the counts of CPUs, nodes and GPUs of a TRES list; memory, billing and the rest are left out.

    >>> tres("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,gres/gpumem=80G,mem=62.50G,node=1")
    {'cpu': 8, 'gres/gpu:a100': 2, 'gres/gpu': 2, 'node': 1}

    Errors: BadRowError when it is not one.
    """
    return {} if absent(written) else dict(_tres(written))


def gpus(counts: Mapping[str, int]) -> tuple[int | None, str | None]:
    """Return (GPUs, type) of a TRES list; None: it names no GPUs. Typed and untyped counts are the same GPUs.

    >>> gpus({"gres/gpu": 4, "gres/gpu:a100": 4}), gpus({"gres/gpu:h200": 2, "gres/gpu:h100": 4}), gpus({"cpu": 1})
    ((4, 'a100'), (6, 'h100+h200'), (None, None))
    """
    typed = {name.partition(":")[2]: count for name, count in counts.items() if name.startswith("gres/gpu:") and count}
    kind = "+".join(sorted(typed)) or None
    if "gres/gpu" in counts:
        return counts["gres/gpu"], kind
    return (sum(typed.values()), kind) if typed else (None, None)


_EXIT = re.compile(r"(\d{1,10}):(\d{1,10})", re.ASCII)


@lru_cache(maxsize=8192)
def exit_status(written: str) -> tuple[int | None, int | None]:
    """Return (code, signal) of `code:signal`; signal 0 is none, codes are folded (see `folded_exit_code`).

    >>> exit_status("3:0"), exit_status("0:9"), exit_status("139:0"), exit_status("")
    ((3, None), (0, 9), (11, None), (None, None))

    Errors: BadRowError when it is not one.
    """
    if absent(written):
        return None, None
    found = _EXIT.fullmatch(written.strip())
    if not found:
        raise BadRowError("bad_exit_code", "exit_code")
    return folded_exit_code(int(found[1])), int(found[2]) or None


def folded_exit_code(code: int) -> int:
    """Return an exit code less 128 where it is 128 or more (139 becomes 11).

    sacct to 24.11 prints it so, its JSON and the text of 26.05 do not: one job, one code, whatever it was read from.

    >>> folded_exit_code(139), folded_exit_code(3)
    (11, 3)
    """
    return code - 128 if code >= 128 else code


@lru_cache(maxsize=8192)
def whole(written: str, column: str) -> int | None:
    """Return a count, None where none is written.

    >>> whole("12", "cpus"), whole("", "cpus")
    (12, None)

    Errors: BadRowError when it is no whole number.
    """
    text = written.strip()
    if not text or text.lower() in ABSENT:
        return None
    if not re.fullmatch(r"\d{1,9}(?:\.0+)?", text, re.ASCII):
        raise BadRowError("bad_count", column)
    return int(float(text))


@lru_cache(maxsize=65536)
def seconds(raw: str, written: str, column: str, *, scale: float = 1.0) -> float | None:
    """Return a duration in s: `raw` (a number, in units of `scale` s) where there is one, else Slurm's notation.

    >>> seconds("16", "", "elapsed_s"), seconds("", "3-06:16:53", "elapsed_s"), seconds("10", "", "t", scale=60)
    (16.0, 281813.0, 600.0)
    >>> seconds("", "UNLIMITED", "timelimit_s")

    Errors: BadRowError when it is no duration.
    """
    number = raw.strip()
    if number and re.fullmatch(r"\d{1,12}", number, re.ASCII):
        return float(number) * scale
    text = written.strip() or number
    if text.lower() in ABSENT or text.lower() in {"unlimited", "partition_limit", "infinite", "invalid", "not_set"}:
        return None
    value = slurm_duration_s(text) if len(text) < 40 and ":" in text else None
    if value is None:
        raise BadRowError("bad_duration", column)
    return value
