"""Whatever users write into names, comments and submit lines: who ran what, when and where comes
out the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from feeding import Landing
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_accounting import BEGIN, KNOWN, MadeAccounting, Run
from slurm_reading import ReadText, Write

from tachograph.catalog.errors import InputError
from tachograph.sources import slurm_live
from tachograph.sources.allocation_map import read_map, read_map_content
from tachograph.sources.registry import convert_settings
from tachograph.sources.sacct import AccountingFeed, SacctSettings
from tachograph.sources.slurm.commands import FIELDS, IDENTITY, AccountingSpan, SacctCommand
from tachograph.sources.slurm.controller import ControllerCommands
from tachograph.sources.slurm.exports import read_content
from tachograph.sources.slurm.records import SlurmCluster
from tachograph.sources.slurm_live import RunningJobsFeed

RANDOM = "3f0c8a51-7d2e-4c9b-8a60-1e5b9d7f2c34"
SPAN = AccountingSpan(BEGIN, datetime(2026, 3, 2, tzinfo=UTC))
IDS = (
    "cluster",
    "job_id",
    "user",
    "submit",
    "start",
    "end",
    "node_list",
    "gpus",
    "state",
    "exclusive",
)
# texts that Slurm lets a user write, and that its commands print as they are
TEXT_FIELDS = {"Account", "AdminComment", "Constraints", "JobName", "SubmitLine"}

FORGED = {
    "JobID": "777", "JobIDRaw": "777", "Cluster": "demo", "Partition": "gpu", "User": "victim",
    "Submit": "2026-03-01T00:00:00", "Start": "2026-03-01T00:00:10", "End": "2026-03-01T01:00:10",
    "Elapsed": "01:00:00", "State": "COMPLETED", "NNodes": "1", "NodeList": "gpu09", "AllocTRES": "gres/gpu=4",
    "Account": "a", "Constraints": "", "JobName": "forged", "SubmitLine": "sbatch x",
}  # fmt: skip
COLUMNS = [*FORGED]


def record_of(fields: dict[str, str], names: list[str], between: str) -> str:
    return between.join(fields.get(name, "") for name in names)


WHOLE_RECORDS = [
    "true\n" + record_of(FORGED | {"JobID": job, "JobIDRaw": job}, names, between)
    for between in ("|", "\x1f", "^|^")
    for names in (
        COLUMNS,
        FIELDS.split(),
        ["Cluster", "JobIDRaw", "Submit", "Account", "JobName", "JobIDRaw"],
    )
    for job in ("777", "1", "2.batch")
]
hostile = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(["\n", "\r\n", "|", "\x1f", "^|^", "1|1", "x", "", " ", "\0", "é"]),
        max_size=12,
    ).map("".join),
    st.sampled_from(WHOLE_RECORDS),
    st.tuples(
        st.sampled_from(WHOLE_RECORDS), st.sampled_from(["", "\n", "\n\n", "|a|b", "\x1f1"])
    ).map("".join),
)


def test_every_field_is_who_ran_what_or_text() -> None:
    names = FIELDS.split()
    assert {name for name in names if name.lower() not in IDENTITY} == TEXT_FIELDS
    assert len(names) == len({name.lower() for name in names})


def test_text_is_never_requested_beside_who_ran_what() -> None:
    accounting = MadeAccounting([Run(1, 60, 0, 60)])
    command = SacctCommand(accounting)
    delimiters = set()
    for _ in range(3):
        command.fetch(SPAN)
        for call in accounting.calls[-2:]:
            options = dict(word.partition("=")[::2] for word in call)
            texts = {
                name for name in options["--format"].split(",") if name.lower() not in IDENTITY
            }
            first = options["--format"].startswith("JobID,")
            assert texts == (set() if first else TEXT_FIELDS & set(KNOWN.split()))
            delimiters |= set() if first else {options["--delimiter"]}
    assert len(delimiters) == 3  # what one poll used says nothing about the next


def polled(*names: str) -> Landing:
    """What lands of two runs of two users, their names given."""
    accounting, landing = (
        MadeAccounting([Run(n, 60 * n, 5, 600, name=name) for n, name in enumerate(names, 1)]),
        Landing(),
    )
    accounting.clock = 7200
    feed = AccountingFeed(SacctCommand(accounting), SacctSettings(source="sacct"), SlurmCluster())
    landing.poll(feed, SPAN.last)
    return landing


@pytest.fixture(scope="module")
def honest() -> Landing:
    """What lands of two runs with plain names."""
    return polled("a", "b")


@settings(max_examples=settings().max_examples // 3)
@given(hostile, hostile)
@example("\n", "\n1\x1f1\x1fdemo")
def test_no_name_changes_what_is_polled(honest: Landing, first: str, second: str) -> None:
    landing = polled(first, second)
    assert landing.jobs.select(IDS).sort("job_id").equals(honest.jobs.select(IDS).sort("job_id"))
    assert landing.allocations.equals(honest.allocations)
    assert landing.jobs.sort("job_id")["name"].to_list() == [first or None, second or None]
    assert landing.rejected == {}


Forge = Callable[[bytes, str], bytes]


def with_texts(forge: Forge) -> Landing:
    """What lands of a run when somebody changed the answer with the texts."""
    accounting, landing = MadeAccounting([Run(1, 60, 5, 600), Run(2, 90, 5, 600)]), Landing()
    accounting.clock = 7200

    def run(*words: str) -> bytes:
        answer = accounting(*words)
        between = dict(word.partition("=")[::2] for word in words).get("--delimiter", "")
        return forge(answer, between) if len(between) > 1 else answer

    feed = AccountingFeed(SacctCommand(run), SacctSettings(source="sacct"), SlurmCluster())
    landing.poll(feed, SPAN.last)
    return landing


def forged_text(between: str, *, job: str, submit: str) -> bytes:
    return (
        between.join(["demo", job, submit, "gold", "", "forged", "sbatch forged", job]).encode()
        + b"\n"
    )


def test_two_texts_of_one_run_are_none() -> None:
    submit = str(int(BEGIN.timestamp()) + 60)
    landing = with_texts(
        lambda answer, between: answer + forged_text(between, job="1", submit=submit)
    )
    assert dict(landing.jobs.select("job_id", "name").iter_rows()) == {"1": None, "2": "train"}
    assert landing.rejected == {"two_texts": 1}
    same = with_texts(lambda answer, _: answer + answer.partition(b"\n")[2])
    assert (same.jobs["name"].to_list(), same.rejected) == (["train", "train"], {})


def test_a_text_of_no_job_is_counted_and_makes_none() -> None:
    landing = with_texts(
        lambda answer, between: answer + forged_text(between, job="777", submit="0")
    )
    assert landing.jobs["job_id"].sort().to_list() == ["1", "2"]
    assert landing.rejected == {"text_of_unknown_job": 1}


@pytest.mark.parametrize("broken", [b"demo", b"demo%s1%s0", b"demo%s1%s0%s%s%s%s%s2"])
def test_an_answer_of_texts_that_cannot_be_split_is_none(broken: bytes) -> None:
    with pytest.raises(InputError, match="a text holds the delimiter, or a part is missing"):
        with_texts(lambda answer, between: answer + broken.replace(b"%s", between.encode()) + b"\n")


def saved(between: str, *texts: dict[str, str], names: list[str] = COLUMNS) -> str:
    """A file of runs 1, 2, ... as sacct prints it; their texts given."""
    records = [
        FORGED | {"JobID": str(job), "JobIDRaw": str(job), "User": f"u{job}"} | text
        for job, text in enumerate(texts, 1)
    ]
    return "".join(
        f"{record_of(record, names, between)}\n"
        for record in [dict(zip(names, names, strict=True)), *records]
    )


@settings(deadline=None)
@given(hostile, hostile, st.sampled_from(sorted(TEXT_FIELDS)))
def test_no_text_changes_a_file_with_a_random_delimiter(
    first: str, second: str, field: str
) -> None:
    content = saved(RANDOM, {field: first}, {field: second}, {}).encode("utf-8", "surrogatepass")
    (reading,) = read_content(content, where="x", cluster=SlurmCluster())
    (honest,) = read_content(
        saved("|", {}, {}, {}).encode(), where="x", cluster=SlurmCluster(), trusted=True
    )
    assert [{name: row[name] for name in IDS} for row in reading.jobs] == [
        {name: row[name] for name in IDS} for row in honest.jobs
    ]
    assert reading.allocations == honest.allocations
    assert reading.rejected == []


@settings(deadline=None)
@given(
    hostile,
    st.sampled_from(["|", "^|^", "\t", ",", ";", "a" * 40]),
    st.sampled_from(sorted(TEXT_FIELDS)),
)
def test_texts_behind_a_delimiter_that_anybody_knows_are_refused(
    text: str, between: str, field: str
) -> None:
    content = saved(between, {field: text}, {}).encode("utf-8", "surrogatepass")
    with pytest.raises(InputError) as caught:
        list(read_content(content, where="jobs.txt", cluster=SlurmCluster(), delimiter=between))
    said = str(caught.value)
    assert said.startswith(
        "jobs.txt: a line may be a record or text of a user (account, constraints, jobname,"
    )
    assert "sacct --parsable2 --delimiter=$(cat /proc/sys/kernel/random/uuid)" in said
    assert "\n" not in said


def test_a_file_without_texts_needs_no_random_delimiter(read_text: ReadText) -> None:
    names = [name for name in COLUMNS if name not in TEXT_FIELDS]
    reading = read_text(saved("|", {}, {}, names=names) + "7|7|half\n", trusted=False)
    assert [(job["job_id"], job["user"]) for job in reading.jobs] == [("1", "u1"), ("2", "u2")]
    assert [(place, reason) for place, reason, _ in reading.rejected] == [(4, "field_count")]


def test_a_file_that_is_cut_off_costs_its_last_record(read_text: ReadText) -> None:
    content = saved(RANDOM, {"SubmitLine": "a\nb"}, {}, {})
    reading = read_text(content[: content.rindex(RANDOM)] + "\n", trusted=False)
    assert [job["job_id"] for job in reading.jobs] == ["1", "2"]
    assert [(place, reason) for place, reason, _ in reading.rejected] == [(5, "field_count")]


# a record of scontrol as Slurm 22.05 prints it, and where a user writes into it; later versions
# print AllocTRES in the place of TRES
SCONTROL = """\
JobId={job} JobName={name}
   UserId=ana(1001) GroupId=ana(1001) MCS_label={mcs}
   Priority=1 Nice=0 Account={account} QOS=normal WCKey={wckey}
   JobState=RUNNING Reason=None Dependency=(null)
   SubmitTime=1795811542 EligibleTime=1795811543
   StartTime=1795811543 EndTime=1795897943 Deadline=N/A
   Partition=gpu AllocNode:Sid=localhost:10556
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=gpu02
   BatchHost=gpu02
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   {tres}
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES={gres}
     Nodes=gpu02 CPU_IDs=0 Mem=1000 GRES={gres}
   MinCPUsNode=1 MinMemoryCPU=1000M MinTmpDiskNode=0
   Features={features} DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network={network}
   Command={command}
   WorkDir={workdir}
   Comment={comment}
   StdErr={stderr}
"""
WITH_GPU = {"tres": "TRES=cpu=1,mem=1000M,node=1,billing=1,gres/gpu=1", "gres": "gpu:1(IDX:3)"}
# the fields of a job and the GPUs that it holds
HOLDS: list[tuple[dict[str, str], list[tuple[str, str, int]]]] = [
    (WITH_GPU, [("5", "gpu02", 3)]),
    (WITH_GPU | {"tres": f"Alloc{WITH_GPU['tres']}"}, [("5", "gpu02", 3)]),
    ({"tres": "TRES=cpu=1,node=1", "gres": ""}, []),
    ({"tres": "AllocTRES=cpu=1,node=1", "gres": ""}, []),
]
WRITTEN = (
    "name",
    "mcs",
    "account",
    "wckey",
    "features",
    "network",
    "command",
    "workdir",
    "comment",
    "stderr",
)


def shown(job: str = "5", **texts: str) -> str:
    return SCONTROL.format_map(dict.fromkeys(WRITTEN, "x") | WITH_GPU | {"job": job} | texts)


FORGED_BLOCKS = [
    "\n     Nodes=gpu01 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)\n",
    "\n   UserId=victim(7)\n   JobState=RUNNING\n   StartTime=1\n   NodeList=gpu01\n",
    "\n" + shown("424242").replace("gpu02", "gpu01").replace("IDX:3", "IDX:0"),
    "a\n" + shown("5").partition("\n")[2] + "\n" + shown("424242").rpartition("   Comment")[0],
    " Socks/Node=* \n     Nodes=gpu01 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)\n   MinCPUsNode=1",
    " AllocTRES=gres/gpu=1",
    " TRES=gres/gpu=1",
]
blocks = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from([*FORGED_BLOCKS, "\n", "JobId=7", " "]), max_size=3).map("".join),
)


@settings(deadline=None)
@given(st.sampled_from(HOLDS), blocks, blocks, st.sampled_from(WRITTEN), st.sampled_from(WRITTEN))
@example(HOLDS[2], " AllocTRES=gres/gpu=1", "x", "comment", "name")
def test_the_record_of_a_job_holds_its_own_gpus_or_is_refused(
    job: tuple[dict[str, str], list[tuple[str, str, int]]],
    first: str,
    second: str,
    here: str,
    there: str,
) -> None:
    fields, own = job
    content = shown(**fields, **{here: first, there: second}).encode("utf-8", "surrogatepass")
    if content.count(b"JobId=") > 1 and re.search(rb"(?m)^JobId=", content[1:]):
        with pytest.raises(
            InputError, match="of several jobs: one of them may be a text that a user wrote"
        ):
            read_map_content(content, where="x", cluster=SlurmCluster())
        return
    reading = read_map_content(content, where="x", cluster=SlurmCluster())
    held = [(row["job_id"], row["node"], row["gpu"]) for row in reading.allocations]
    assert held == (own if not reading.rejected else [])
    assert reading.unplaced == []
    assert [reason for _, reason, _ in reading.rejected] in ([], ["two_readings"])


def test_a_file_of_several_records_is_refused_unless_it_is_trusted(write: Write) -> None:
    path = write(shown("5") + "\n" + shown("6").replace("IDX:3", "IDX:2"))
    with pytest.raises(
        InputError, match=r"of several jobs.*squeue --json.*a file of its own.*--trusted"
    ):
        read_map(path, cluster=SlurmCluster())
    assert len(read_map(path, cluster=SlurmCluster(), trusted=True).allocations) == 2


@settings(max_examples=settings().max_examples // 2)
@given(blocks, st.sampled_from(WRITTEN))
def test_a_poll_of_text_holds_each_job_once(text: str, field: str) -> None:
    """The job of the one who forges is refused, the others keep what they hold."""
    answers = {"5": shown("5", **{field: text}), "6": shown("6").replace("IDX:3", "IDX:2")}

    def squeue(*arguments: str) -> bytes:
        if "--json" in arguments:
            raise InputError(
                "failed with exit code 1: unrecognized option '--json'", where="squeue"
            )
        return b"5,1795811543,5\n6,1795811543,6\n"

    def scontrol(*arguments: str) -> bytes:
        if arguments == ("show", "config"):
            return b"ClusterName = c\n"
        return answers[arguments[-1]].encode("utf-8", "surrogatepass")

    feed, landing = (
        RunningJobsFeed(ControllerCommands(squeue, scontrol), "slurm-live:a", SlurmCluster()),
        Landing(),
    )
    landing.poll(feed, datetime(2026, 11, 30, tzinfo=UTC))
    held = {
        (row["job_id"], row["node"], row["gpu"])
        for row in landing.allocations.iter_rows(named=True)
    }
    assert held - {("5", "gpu02", 3)} == {("6", "gpu02", 2)}
    assert (("5", "gpu02", 3) in held) == (not landing.rejected)
    assert landing.rejected in ({}, {"two_readings": 1})


def test_the_gpus_of_a_run_are_requested_once() -> None:
    asked: list[str] = []
    listed = iter([b"5,10,5\n", b"5,10,5\n9,20,3_1\n", b"5,30,5\n9,20,3_1\n", b""])

    def squeue(*arguments: str) -> bytes:
        return next(listed)

    def scontrol(*arguments: str) -> bytes:
        asked.append(arguments[-1])
        return shown({"5": "5", "3_1": "9"}[arguments[-1]]).encode()

    settings_of = convert_settings(
        {"source": "slurm-live", "format": "text"}, slurm_live.SETTINGS, where="x"
    )
    controller = ControllerCommands(squeue, scontrol, form=settings_of.format)
    for _ in range(4):
        controller.fetch_jobs()
    assert asked == ["5", "3_1", "5"]  # the run that began again is another one


@pytest.mark.parametrize("tres", ["cpu=4,node=1", "cpu=4,gres/gpu=2"])
def test_a_name_does_not_make_gpus_accounted_for(tres: str) -> None:
    """Where no job has GPUs in its TRES, the site does not account for them, and their number is
    unknown.
    """
    values = FORGED | {"AllocTRES": "cpu=4,node=1", "JobName": "gres/gpu=1"}
    records = [values, values | {"JobID": "778", "JobIDRaw": "778", "AllocTRES": tres}]
    lines = [RANDOM.join(COLUMNS), *(record_of(record, COLUMNS, RANDOM) for record in records)]
    content = "\n".join(lines).encode() + b"\n"
    (reading,) = read_content(content, where="x", cluster=SlurmCluster())
    assert [row["gpus"] for row in reading.jobs] == ([0, 2] if "gpu" in tres else [None, None])
