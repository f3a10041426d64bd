"""Source `lsf`: jobs of IBM Spectrum LSF, `bjobs -a -u all -json -o "FIELDS"`.

Fields: bjobs(1). Times have a year with LSB_DISPLAY_YEAR=Y in lsf.conf only; without one they are
rejected as `bad_time`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from tachograph.sources.files import add_files
from tachograph.sources.schedulers.documents import (
    DocumentSource,
    file_suffixes,
    host_list,
    json_document,
    not_of,
    settled_times,
    shell_status,
    take_job,
)
from tachograph.sources.slurm.exports import AccountingReading
from tachograph.sources.slurm.fields import (
    BadRowError,
    JobId,
    any_job_id,
    json_example,
    json_objects,
    json_text,
    json_value,
)
from tachograph.sources.slurm.records import JobRecord, SlurmCluster, SlurmRow

NAME = "lsf"
SUFFIXES = file_suffixes(".json")
FIELDS = (
    "jobid jobindex stat user queue job_name proj_name exit_code exit_reason exec_host "
    "submit_time start_time finish_time run_time nalloc_slot gpu_num"
)
_SAVE = f'bjobs -a -u all -json -o "{FIELDS}"'
_STATES: Mapping[str, str] = {
    **dict.fromkeys(("PEND", "PSUSP", "WAIT", "PROV"), "PENDING"),
    "RUN": "RUNNING",
    **dict.fromkeys(("USUSP", "SSUSP"), "SUSPENDED"),
    "DONE": "COMPLETED",
    "EXIT": "FAILED",
}
_OVER = frozenset({"DONE", "EXIT"})
_REASONS: Mapping[str, str] = {  # of EXIT, as lsbatch.h names them
    **dict.fromkeys(("TERM_RUNLIMIT", "TERM_DEADLINE"), "TIMEOUT"),
    **dict.fromkeys(("TERM_MEMLIMIT", "TERM_SWAP"), "OUT_OF_MEMORY"),
    **dict.fromkeys(
        ("TERM_OWNER", "TERM_ADMIN", "TERM_FORCE_OWNER", "TERM_FORCE_ADMIN"), "CANCELLED"
    ),
    "TERM_PREEMPT": "PREEMPTED",
}
_HOST = re.compile(r"(?:\d{1,6}\*)?([^:*]+)", re.ASCII)
_FORMATS = ("%b %d %H:%M:%S %Y", "%b %d %H:%M %Y", "%Y %b %d %H:%M:%S", "%Y %b %d %H:%M")
_SECONDS = re.compile(r"(\d{1,12})(?:\.\d+)? second", re.ASCII)


def is_lsf(document: object) -> bool:
    """Return whether a document is a list of LSF's jobs."""
    records = json_value(document, "RECORDS")
    return json_value(document, "COMMAND") == "bjobs" and isinstance(records, list)


def read_lsf(content: bytes, where: str, cluster: SlurmCluster) -> AccountingReading:
    """Return the jobs of a file. Errors: InputError for a file that LSF did not write."""
    document = json_document(content, where)
    if not is_lsf(document):
        raise not_of("output of bjobs", where, _SAVE)
    reading = AccountingReading()
    for position, job in enumerate(json_objects(document, "RECORDS"), start=1):
        take_job(reading, position, json_example(job), partial(_record, job, cluster), cluster)
    return reading


def _record(job: object, cluster: SlurmCluster) -> tuple[JobRecord, list[SlurmRow]]:
    def get(name: str) -> str:
        text = (json_text(job, name) or "").strip()
        return "" if text == "-" else text

    number, index = get("JOBID"), get("JOBINDEX").strip("0")
    index = get("JOBINDEX") if index else ""
    status = get("STAT")
    if status not in _STATES:
        raise BadRowError("bad_state")
    state = _STATES[status]
    if status == "EXIT":
        state = _REASONS.get(get("EXIT_REASON").partition(":")[0], state)
    ended = get("FINISH_TIME") if status in _OVER else ""  # of others it is expected
    written = [get("SUBMIT_TIME"), get("START_TIME"), ended]
    run = _SECONDS.match(get("RUN_TIME"))
    submit, _, start, end = settled_times(
        (_iso(written[0]), "", _iso(written[1]), _iso(written[2])),
        cluster.time_zone,
        run_s=float(run[1]) if run else None,
    )
    by_minute = any(text and text.count(":") == 1 for text in written)
    code: int | None = 0 if status == "DONE" else None
    signal: int | None = None
    if status == "EXIT" and re.fullmatch(r"\d{1,6}", get("EXIT_CODE"), re.ASCII):
        code, signal = shell_status(int(get("EXIT_CODE")))
    hosts = [match[1] for part in get("EXEC_HOST").split(":") if (match := _HOST.fullmatch(part))]
    counts = {"gres/gpu": get("GPU_NUM"), "cpu": get("NALLOC_SLOT")}
    allocated = {
        name: int(text[:9]) for name, text in counts.items() if text.isascii() and text.isdigit()
    }
    record = JobRecord(
        id=JobId(
            any_job_id(f"{number}[{index}]" if index else number),
            array_job_id=number if index else None,
            array_task_id=int(index) if index.isascii() and index.isdigit() else None,
        ),
        cluster=cluster.name,
        name=get("JOB_NAME") or None,
        user=get("USER") or None,
        account=get("PROJ_NAME") or None,
        partition=get("QUEUE") or None,
        state=state,
        exit_code=code,
        exit_signal=signal,
        submit=submit,
        start=start,
        end=end,
        elapsed_s=float(run[1]) if run else None,
        nodes=len(set(hosts)) or None,
        node_list=host_list(hosts),
        allocated=allocated or None,
        # "-" of a job without GPUs is 0 where GPU_NUM was printed
        names_gpus=json_value(job, "GPU_NUM") is None,
        time_precision_s=60.0 if by_minute else 0.0,
    )
    return record, []


def _iso(written: str) -> str:
    """A time of LSF in ISO; behind it may stand L, E or X. Errors: BadRowError without a year."""
    text = re.sub(r"\s+[LEX]$", "", written)
    if not text:
        return ""
    for form in _FORMATS:
        try:
            return datetime.strptime(text, form).isoformat()  # noqa: DTZ007
        except ValueError:
            continue
    raise BadRowError("bad_time")


_FILES = DocumentSource(NAME, SUFFIXES, read_lsf)
add_options, read, rejected = add_files, _FILES.read, _FILES.rejected
