"""Source `pbs`: jobs of PBS Professional and OpenPBS, `qstat -f -F json` and accounting logs.

Formats: PBS Professional Reference Guide, "Job Attributes" and "Accounting Log Records". Torque's
logs have the same lines and other resources: GPUs stand in `Resource_List.nodes` there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from tachograph.catalog.units import slurm_duration_s
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
    json_text,
    json_value,
)
from tachograph.sources.slurm.records import JobRecord, SlurmCluster, SlurmRow
from tachograph.sources.slurm.usage import HostUsage

NAME = "pbs"
SUFFIXES = file_suffixes(".json", ".log", ".txt", ".acct")
_SAVE = "qstat -x -f -F json"
LOG_LINE = re.compile(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;[A-Za-z];[^;\s]+;", re.ASCII)
# A quote counts right behind the equals sign only: names of jobs may hold one.
_PAIR = re.compile(r'(?<!\S)([A-Za-z][\w.]*)=("[^"]*"|\S*)')
_INNER_KEY = re.compile(r"\s[A-Za-z][\w.]*=")
_ARRAY = re.compile(r"\d+\[\](?:\..*)?", re.ASCII)
_ARRAY_TASK = re.compile(r"(\d+)\[(\d+)\](.*)", re.ASCII)
_SIZE = re.compile(r"(\d{1,15})([kmgtp]?)b?", re.ASCII | re.IGNORECASE)
_GPUS_OF_CHUNK = re.compile(r":ngpus=(\d{1,6})", re.ASCII)
_LOGGED_GPUS = re.compile(
    r" (?:Resource_List\.ngpus=|exec_vnode=\S*:ngpus=|Resource_List\.nodes=\S*:gpus=)"
)
_STATES: Mapping[str, str] = {
    **dict.fromkeys("QHWTM", "PENDING"),
    **dict.fromkeys("RE", "RUNNING"),
    **dict.fromkeys("SU", "SUSPENDED"),
}
_SIGTERM = 15
# Exit statuses below 0 are PBS's own (pbs_job.h): limits, and jobs that could not start.
_OF_LIMITS = {
    -26: "OUT_OF_MEMORY",
    -27: "OUT_OF_MEMORY",
    -28: "TIMEOUT",
    -29: "TIMEOUT",
}


def read_pbs(content: bytes, where: str, cluster: SlurmCluster) -> AccountingReading:
    """Return the jobs of a file. Errors: InputError for a file that PBS did not write."""
    if content.lstrip()[:1] == b"{":
        return _read_qstat(json_document(content, where), where, cluster)
    return _read_log(content.decode("utf-8", "replace"), where, cluster)


def _read_qstat(document: object, where: str, cluster: SlurmCluster) -> AccountingReading:
    jobs = json_value(document, "Jobs")
    if json_value(document, "pbs_version") is None:
        raise not_of("output of PBS", where, _SAVE)
    reading = AccountingReading()
    jobs = jobs if isinstance(jobs, dict) else {}
    # Without any GPU in the file a job without GPUs may still have had some.
    tracked = any("gres/gpu" in (_allocated(_flat(job)) or {}) for job in jobs.values())
    cluster = replace(cluster, tracks_gpus=tracked)
    for position, (name, job) in enumerate(jobs.items(), start=1):
        if json_text(job, "job_state") == "B" or _ARRAY.fullmatch(name):
            continue  # an array as a whole, begun or ended: its tasks are jobs of their own
        example = json_example({name: job})
        take_job(reading, position, example, partial(_of_qstat, name, job, cluster), cluster)
    return reading


def _of_qstat(name: str, job: object, cluster: SlurmCluster) -> tuple[JobRecord, list[SlurmRow]]:
    fields = _flat(job)
    return _record(name, fields, _state(fields), cluster), []


def _flat(job: object) -> dict[str, str]:
    """Attributes as the accounting log writes them: {"Resource_List.ngpus": "2"}."""
    fields: dict[str, str] = {}
    for name, value in job.items() if isinstance(job, dict) else ():
        inner = value if isinstance(value, dict) else {"": value}
        for part in inner:
            text = json_text(inner, part)
            if text is not None:
                fields[f"{name}.{part}" if part else name] = text
    owner = fields.get("Job_Owner", "").partition("@")[0]
    fields |= {"user": fields.get("euser") or owner, "jobname": fields.get("Job_Name", "")}
    fields |= {"account": fields.get("Account_Name", ""), "start": fields.get("stime", "")}
    for time in ("ctime", "etime", "start", "obittime"):
        if time in fields:
            fields[time] = _iso(fields[time])
    return fields


def _iso(written: str) -> str:
    """A time as ctime(3) writes it, in ISO; others stay."""
    try:
        return datetime.strptime(written, "%a %b %d %H:%M:%S %Y").isoformat()  # noqa: DTZ007
    except ValueError:
        return written


def _state(fields: Mapping[str, str]) -> str | None:
    written = fields.get("job_state", "")
    if written in ("F", "X"):
        return None if fields.get("start") else "CANCELLED"
    if written not in _STATES:
        raise BadRowError("bad_state")
    return _STATES[written]


def _read_log(text: str, where: str, cluster: SlurmCluster) -> AccountingReading:
    lines = text.split("\n")
    if not any(LOG_LINE.match(line) for line in lines):
        raise not_of("output of PBS, nor its accounting log", where, _SAVE)
    reading = AccountingReading()
    cluster = replace(cluster, tracks_gpus=any(_LOGGED_GPUS.search(line) for line in lines))
    for position, line in enumerate(lines, start=1):
        if LOG_LINE.match(line) and line.split(";", 2)[1] == "E":
            take_job(reading, position, line, partial(_of_log, line, cluster), cluster)
    return reading


def _of_log(line: str, cluster: SlurmCluster) -> tuple[JobRecord, list[SlurmRow]]:
    _, _, name, rest = line.split(";", 3)
    pairs = _PAIR.findall(rest)
    fields = {key: value.strip('"') for key, value in pairs}
    # What a user wrote may hide or repeat a field.
    if len(fields) != len(pairs) or any(_INNER_KEY.search(value) for value in fields.values()):
        raise BadRowError("two_readings")
    return _record(name, fields, None, cluster), []


def _record(
    name: str, fields: Mapping[str, str], state: str | None, cluster: SlurmCluster
) -> JobRecord:
    """The job of a record; `state` None: it has ended, by its exit status."""
    get = fields.get
    elapsed_s = _duration(get("resources_used.walltime", ""))
    timelimit_s = _duration(get("Resource_List.walltime", ""))
    written = (get("ctime", ""), get("etime", ""), get("start", ""), "")
    ended = get("end") or get("obittime", "") if state is None else ""
    submit, eligible, start, end = settled_times(
        (*written[:3], ended), cluster.time_zone, run_s=elapsed_s
    )
    if state is None and end is None and start is not None and elapsed_s is not None:
        end = start + timedelta(seconds=elapsed_s)
    code, signal = None, None
    if state is None:
        over_limit = None not in (elapsed_s, timelimit_s) and (elapsed_s or 0) >= (timelimit_s or 0)
        state, code, signal = _ending(get("Exit_status", ""), over_limit=over_limit)
    hosts = [part.partition("/")[0] for part in get("exec_host", "").split("+") if part]
    task = _ARRAY_TASK.fullmatch(name)
    placement = get("Resource_List.place", "")
    return JobRecord(
        id=JobId(
            any_job_id(name),
            array_job_id=f"{task[1]}[]{task[3]}" if task else None,
            array_task_id=int(task[2]) if task else None,
        ),
        cluster=cluster.name,
        name=get("jobname") or None,
        user=get("user") or None,
        account=get("account") or _project(get("project", "")) or get("group") or None,
        partition=get("queue") or None,
        state=state,
        exit_code=code,
        exit_signal=signal,
        submit=submit,
        eligible=eligible,
        start=start,
        end=end,
        elapsed_s=elapsed_s,
        timelimit_s=timelimit_s,
        nodes=len(set(hosts)) or None,
        node_list=host_list(hosts),
        allocated=_allocated(fields),
        exclusive=True if "exclhost" in placement else None,
        mem_requested_mib=_size_mib(get("Resource_List.mem", "")),
        usage=HostUsage(polled_s=_duration(get("resources_used.cput", ""))),
    )


def _project(written: str) -> str:
    return "" if written == "_pbs_project_default" else written


def _duration(written: str) -> float | None:
    """Seconds of hours:minutes:seconds, or a number of them."""
    return slurm_duration_s(written) if written else None


def _size_mib(written: str) -> float | None:
    """Return a size in MiB, from bytes if there is no unit; None without one."""
    match = _SIZE.fullmatch(written)
    if match is None:
        return None
    return int(match[1]) * 1024.0 ** ("bkmgtp".index(match[2].lower() or "b") - 2)


def _allocated(fields: Mapping[str, str]) -> dict[str, int] | None:
    """GPUs of the chunks that were given, else requested; CPUs."""
    counts: dict[str, int] = {}
    cpus = fields.get("Resource_List.ncpus", "")
    if cpus.isascii() and cpus.isdigit():
        counts["cpu"] = int(cpus[:9])
    gpu_counts = _GPUS_OF_CHUNK.findall(fields.get("exec_vnode", ""))
    requested = fields.get("Resource_List.ngpus", "")
    if gpu_counts:
        counts["gres/gpu"] = sum(map(int, gpu_counts))
    elif requested.isascii() and requested.isdigit():
        counts["gres/gpu"] = int(requested[:9])
    elif "gpus=" in fields.get("Resource_List.nodes", ""):
        counts["gres/gpu"] = _gpus_of_torque(fields["Resource_List.nodes"])
    return counts or None


def _gpus_of_torque(written: str) -> int:
    """GPUs of Torque's request of nodes.

    >>> _gpus_of_torque("2:ppn=8:gpus=4+gpu07:gpus=1")
    9
    """
    total = 0
    for chunk in written.split("+"):
        nodes = chunk.partition(":")[0]
        gpus = re.search(r":gpus=(\d{1,6})", chunk, re.ASCII)
        count = int(nodes) if nodes.isascii() and nodes.isdigit() else 1
        total += count * int(gpus[1]) if gpus else 0
    return total


def _ending(written: str, *, over_limit: bool) -> tuple[str | None, int | None, int | None]:
    """(State, exit code, signal) of an exit status; 256 and a signal: PBS killed the job.

    >>> _ending("0", over_limit=False), _ending("271", over_limit=True), _ending("-29", over_limit=False)
    (('COMPLETED', 0, None), ('TIMEOUT', 0, 15), ('TIMEOUT', None, None))
    >>> _ending("271", over_limit=False)[0], _ending("137", over_limit=False), _ending("", over_limit=False)
    ('CANCELLED', ('FAILED', 0, 9), (None, None, None))
    """
    if not re.fullmatch(r"-?\d{1,6}", written, re.ASCII):
        return None, None, None
    status = int(written)
    if status < 0:
        return _OF_LIMITS.get(status, "FAILED"), None, None
    code, signal = (0, status - 256) if status > 256 else shell_status(status)
    if over_limit and signal is not None:
        return "TIMEOUT", code, signal
    if status == 256 + _SIGTERM:
        return "CANCELLED", code, signal
    return ("COMPLETED" if status == 0 else "FAILED"), code, signal


_FILES = DocumentSource(NAME, SUFFIXES, read_pbs)
add_options, read, rejected = add_files, _FILES.read, _FILES.rejected
