"""The rank that a hang waits for: dumps and answers of simulated programs, written here as PyTorch
and NCCL write them; what is missing, damaged or hostile; the comparison with counters.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from jobframes import START, gpus, summary
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import JOB_MINUTES
from tachograph.judge.culprit import Culprit
from tachograph.judge.ranks import RanksCulprit, find_ranks
from tachograph.report.job import build_job_report, job_json
from tachograph.report.job_message import job_ticket
from tachograph.report.job_page import job_html
from tachograph.report.job_text import job_text
from tachograph.sources.rank_dumps import MOST_BYTES, read_rank_dumps

KINDS = ("AllReduce", "AllGather", "Broadcast")
LAUNCHED, STARTED, COMPLETED = range(3)


@dataclass(frozen=True)
class Run:
    """A job that hangs: its groups, and {group: {rank: [state of each operation]}}."""

    members: Mapping[str, Sequence[int]]
    kinds: Mapping[str, Sequence[str]]
    states: Mapping[str, Mapping[int, Sequence[int]]]


def simulated(ranks: int, culprit: int, *, at: int, seed: int, stuck_on: str = "host") -> Run:
    """All ranks run the same program; the culprit stops before its operation `at`, on the host, or
    on its GPU (all is launched then). An operation ends when all its members are in it; the GPU of
    a rank does one after the other, and the hosts of others launch some ahead.
    """
    dice = random.Random(seed)
    pairs = {f"pair{first}": (first, first + 1) for first in range(0, ranks - 1, 2)}
    members = {"0": tuple(range(ranks)), **pairs}
    program = [(name, dice.choice(KINDS)) for _ in range(12) for name in members]
    mine = {rank: [step for step, (name, _) in enumerate(program) if rank in members[name]]
            for rank in range(ranks)}  # fmt: skip
    done = dict.fromkeys(range(ranks), 0)  # operations of the rank that completed
    while True:
        inside = {
            rank: mine[rank][count]
            for rank, count in done.items()
            if count < len(mine[rank]) and not (rank == culprit and count >= at)
        }
        ready = {step for step in inside.values()
                 if all(inside.get(rank) == step for rank in members[program[step][0]])}  # fmt: skip
        if not ready:
            break
        for rank, step in inside.items():
            done[rank] += step in ready
    states: dict[str, dict[int, list[int]]] = {name: {} for name in members}
    for rank, count in done.items():
        ahead = dice.randrange(4) + (stuck_on == "gpu")
        waits = 0 if rank == culprit else 1
        launched = count + waits + ahead
        if rank == culprit and stuck_on == "host":
            launched = count
        for place, step in enumerate(mine[rank][:launched]):
            state = COMPLETED if place < count else STARTED if place < count + waits else LAUNCHED
            states[program[step][0]].setdefault(rank, []).append(state)
    kinds = {name: [kind for group, kind in program if group == name] for name in members}
    return Run(members, kinds, states)


def flight_dump(run: Run, rank: int, *, timed: bool = True) -> dict[str, Any]:
    """A dump of PyTorch's flight recorder; without timing it does not see what started."""
    names = ("scheduled", "started" if timed else "scheduled", "completed")
    entries: list[dict[str, Any]] = []
    for name, states in run.states.items():
        for number, state in enumerate(states.get(rank, ()), 1):
            entries.append(
                {
                    "record_id": len(entries),
                    "pg_id": 7,
                    "process_group": (name, f"desc of {name}"),
                    "collective_seq_id": number,
                    "p2p_seq_id": 0,
                    "op_id": number,
                    "profiling_name": f"nccl:{run.kinds[name][number - 1].lower()}",
                    "input_sizes": [[300, 2]],
                    "time_created_ns": 1_700_000_000_000_000_000,
                    "duration_ms": 0.5,
                    "state": names[state],
                    "time_discovered_started_ns": None,
                    "retired": state == COMPLETED,
                    "is_p2p": False,
                }
            )
    config = {name: {"name": name, "desc": f"desc of {name}", "ranks": str(list(members))}
              for name, members in run.members.items() if rank in members}  # fmt: skip
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def write_flight(folder: Path, dumps: Mapping[int, Mapping[str, Any]], form: str) -> list[Path]:
    files = []
    for rank, dump in dumps.items():
        file = folder / f"nccl_trace_rank_{rank}{'.json' if form == 'json' else ''}"
        if form == "json":
            file.write_text(json.dumps(dump), encoding="utf-8")
        else:
            file.write_bytes(pickle.dumps(dump, protocol=2))
        files.append(file)
    return files


def host_of(rank: int) -> str:
    return f"10.0.0.{1 + rank // 4}"


def ras_ranks(run: Run, name: str) -> list[dict[str, Any]]:
    """A communicator's ranks in JSON: numbered anew, launched operations counted by kind."""
    rows = []
    for number, rank in enumerate(run.members[name]):
        launched = run.kinds[name][: len(run.states[name].get(rank, ()))]
        rows.append(
            {
                "rank": number,
                "host": host_of(rank),
                "pid": 100 + rank,
                "cuda_dev": 0,
                "nvml_dev": rank % 4,
                "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
                "collective_counts": {kind: launched.count(kind) for kind in KINDS},
            }
        )
    return rows


def ras_json(run: Run, lost: int | None = None) -> str:
    communicators: list[dict[str, Any]] = []
    for name in run.members:
        rows = ras_ranks(run, name)
        missing = [row for row in rows if run.members[name][row["rank"]] == lost]
        for row in missing:
            row["status"] = {"unresponsive": True, "considered_dead": False}
            del row["collective_counts"]
        communicators.append(
            {
                "hash": f"0x{len(communicators):x}",
                "size": len(rows),
                "ranks": [row for row in rows if row not in missing],
                "missing_ranks": missing,
            }
        )
    return json.dumps({"nccl_version": "2.29.1", "communicators": communicators})


def ras_text(run: Run, lost: int | None = None) -> str:
    """The same as text, which names ranks of outliers alone: single ones, up to a quarter."""
    lines = ["Job summary", "===========", "", "Errors", "======", ""]
    warnings = ["Warnings", "========", ""]
    for number, (name, members) in enumerate(run.members.items()):
        rows = ras_ranks(run, name)
        process = {row["rank"]: f"GPU 0 (NVML {row['nvml_dev']}) managed by process {row['pid']} "
                   f"on node {row['host']}" for row in rows}  # fmt: skip
        if lost in members:
            lines += [f"#{number}-0 ({number:016x}) INCOMPLETE"]
            lines += ["  Missing communicator data from 1 rank"]
            lines += [f"  Rank {members.index(lost)} -- {process[members.index(lost)]}", ""]
        warnings += [f"#{number}-0 ({number:016x}) MISMATCH"]
        warnings += ["  Communicator ranks have different status", "  4 ranks have status RUNNING"]
        warnings += [f"  Rank 0 -- {process[0]}"]
        for kind in KINDS:
            counts = [row["collective_counts"][kind] for row in rows
                      if members[row["rank"]] != lost]  # fmt: skip
            if len(set(counts)) == 1:
                continue
            warnings += [f"  Communicator ranks have different {kind} operation counts"]
            for count in sorted(set(counts), key=counts.count, reverse=True):
                reached = f"launched up to operation {count}"
                if not count:
                    reached = "not launched any operations"
                those = [row for row in rows if row["collective_counts"][kind] == count
                         and members[row["rank"]] != lost]  # fmt: skip
                if len(those) > 1:
                    warnings += [f"  {len(those)} ranks have {reached}"]
                if len(those) == 1 or len(those) <= len(rows) / 4:
                    alone = f" has {reached}" if len(those) == 1 else ""
                    warnings += [f"  Rank {row['rank']}{alone} -- {process[row['rank']]}"
                                 for row in those]  # fmt: skip
            warnings += [""]
    return "\n".join([*lines, *warnings])


def read(files: Sequence[Path], ranks: int = 8, culprit: Culprit | None = None) -> RanksCulprit:
    """The culprit of a job with four GPUs per node, whose nodes are not known by address."""
    groups, problems = read_rank_dumps(files)
    units = [(f"n{1 + rank // 4}", rank % 4) for rank in range(ranks)]
    return find_ranks(groups, units, culprit, problems)


@pytest.mark.parametrize("seed", range(12))
def test_the_rank_that_stops_is_named_in_every_form(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    culprit, at = dice.randrange(8), dice.randrange(16)
    run = simulated(8, culprit, at=at, seed=seed)
    for form, timed in (("json", True), ("json", False), ("pickle", True), ("pickle", False)):
        dumps = {rank: flight_dump(run, rank, timed=timed) for rank in range(8)}
        files = write_flight(tmp_path, dumps, form)
        answers = {repr(read(dice.sample(files, 8))) for _ in range(3)}
        assert len(answers) == 1  # the order of files does not matter
        found = read(files)
        assert [(place.rank, place.node, place.gpu) for place in found.ranks] == [
            (culprit, f"n{1 + culprit // 4}", culprit % 4)
        ]
        assert "if ranks are in the order of nodes and GPUs" in found.sentence
        assert f"rank {culprit} (" in found.sentence
    for name, document in (("ras.json", ras_json(run)), ("ras.txt", ras_text(run))):
        file = tmp_path / name
        file.write_text(document, encoding="utf-8")
        found = read([file])
        assert {(place.gpu, place.node) for place in found.ranks} <= {
            (culprit % 4, None),
            (culprit % 4, f"n{1 + culprit // 4}"),
        }
        assert found.ranks or name == "ras.txt", found  # the text may count it among unnamed ones
        place = f"({host_of(culprit)} GPU {culprit % 4})"
        assert (
            not found.ranks or place in found.sentence or f"GPU {culprit % 4}, if" in found.sentence
        )


def test_numbers_and_names_of_the_evidence(tmp_path: Path) -> None:
    run = Run(
        {"0": range(8)},
        {"0": ["AllReduce"] * 12},
        {"0": {rank: [COMPLETED] * 3 + [STARTED] + [LAUNCHED] * rank for rank in range(8)}},
    )
    run.states["0"][5] = [COMPLETED] * 3  # type: ignore[index]
    files = write_flight(tmp_path, {rank: flight_dump(run, rank) for rank in range(8)}, "pickle")
    assert read(files, ranks=9).sentence == (
        "7 others waited for rank 5, which did not join operation 4 nccl:allreduce of "
        "group 0 desc of 0 [0, 1, 2, 3, 4, 5, 6, 7]."
    )
    text, answer = tmp_path / "ras.txt", tmp_path / "ras.json"
    text.write_text(ras_text(run), encoding="utf-8")
    answer.write_text(ras_json(run), encoding="utf-8")
    for file, name in ((text, f"0x{0:016x}"), (answer, "0x0")):
        assert read([file], ranks=9).sentence == (
            "7 others waited for rank 5 (10.0.0.2 GPU 1), which did not join operation 4 of "
            f"AllReduce in communicator {name}."
        )


@pytest.mark.parametrize("seed", range(6))
def test_a_gpu_that_never_starts_is_seen_with_timing_only(tmp_path: Path, seed: int) -> None:
    run = simulated(8, 3, at=5, seed=seed, stuck_on="gpu")
    timed = write_flight(tmp_path, {rank: flight_dump(run, rank) for rank in range(8)}, "json")
    assert [place.rank for place in read(timed).ranks] == [3]
    assert "which did not start operation" in read(timed).sentence
    dumps = {rank: flight_dump(run, rank, timed=False) for rank in range(8)}
    found = read(write_flight(tmp_path, dumps, "json"))
    assert not found.ranks
    assert found.sentence.startswith("No rank can be named: in no group do ranks wait")


def test_a_rank_that_does_not_answer_ras_is_named(tmp_path: Path) -> None:
    run = simulated(8, 6, at=4, seed=1)
    for name, document in (("a.json", ras_json(run, lost=6)), ("a.txt", ras_text(run, lost=6))):
        file = tmp_path / name
        file.write_text(document, encoding="utf-8")
        found = read([file], ranks=9)
        assert {place.gpu for place in found.ranks} == {2}
        assert found.sentence.startswith(
            "No answer to NCCL's RAS came from rank 6 (10.0.0.2 GPU 2)"
        )


def test_without_all_dumps_only_what_is_certain_is_named(tmp_path: Path) -> None:
    run = simulated(8, 5, at=7, seed=3)
    dumps = {rank: flight_dump(run, rank) for rank in range(8)}
    files = write_flight(tmp_path, dumps, "json")
    without = read([file for rank, file in enumerate(files) if rank != 5])
    assert 5 not in {place.rank for place in without.ranks}
    assert "Nothing is recorded of ranks: 5." in without.sentence
    other = read([file for rank, file in enumerate(files) if rank != 2])
    assert [place.rank for place in other.ranks] == [5]
    assert "Nothing is recorded of ranks: 2." in other.sentence
    dumps[5]["entries"] = [replace_record(dumps[7]["entries"][0], 9, group="another")]
    ring = read(write_flight(tmp_path, dumps, "json"))
    assert "Nothing is recorded of ranks: 5." in ring.sentence  # older ones left its buffer


def replace_record(entry: Mapping[str, Any], record: int, *, group: str) -> dict[str, Any]:
    return {**entry, "record_id": record, "process_group": (group, "")}


def test_a_run_that_ended_and_a_deadlock_name_none(tmp_path: Path) -> None:
    ended = simulated(8, 0, at=999, seed=5)
    files = write_flight(tmp_path, {rank: flight_dump(ended, rank) for rank in range(8)}, "json")
    assert read(files).agreement == "none"
    crossed = Run(
        {"a": (0, 1), "b": (0, 1)},
        {"a": KINDS, "b": KINDS},
        {"a": {0: [STARTED], 1: []}, "b": {0: [], 1: [STARTED]}},
    )
    for file in files:
        file.unlink()
    files = write_flight(tmp_path, {rank: flight_dump(crossed, rank) for rank in (0, 1)}, "json")
    assert "or they wait elsewhere, too" in read(files, ranks=2).sentence
    lone = Run({"a": range(4)}, {"a": KINDS}, {"a": {0: [STARTED], 1: [], 2: [], 3: []}})
    files = write_flight(tmp_path, {rank: flight_dump(lone, rank) for rank in range(4)}, "json")
    assert "more ranks are behind than wait" in read(files, ranks=4).sentence


class Hostile:
    """Unpickled, it would run a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_is_refused_by_name(tmp_path: Path, protocol: int) -> None:
    touched = tmp_path / "touched"
    file = tmp_path / "nccl_trace_rank_0"
    dump = {"pg_config": {}, "entries": [Hostile(f"touch {touched}")]}
    file.write_bytes(pickle.dumps(dump, protocol=protocol))
    with pytest.raises(InputError, match=r"nccl_trace_rank_0 is not read: ") as refused:
        read_rank_dumps([file])
    assert not touched.exists()
    if protocol == 2:
        assert "GLOBAL posix system" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x02}r\xff\xff\xff\x7f.", "LONG_BINPUT" and "numbers more values than it has"),
        (b"\x80\x02}q\x00X\xff\xff\xff\xffab", "expected"),
        (b"\x80\x02(s.", "is not read"),
        (b"\x80\x02]K\x01a.", "Expected `object`"),
        (b"{" * 100_000, "is not read"),
        (b'{"pg_config": {}}', "no process groups"),
        (b'{"communicators": [{"hash": "0x1", "ranks": [{"rank": "x"}]}]}', "Expected `int`"),
        (b"line\n" * 9, "neither an answer of NCCL's RAS nor a dump"),
        (b"", "neither an answer"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "rank_1"
    file.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_rank_dumps([file])
    assert reason in str(refused.value)


def test_what_is_no_file_or_too_large_or_twice_is_named_beside_the_rest(tmp_path: Path) -> None:
    run = simulated(4, 1, at=3, seed=2)
    files = write_flight(tmp_path, {rank: flight_dump(run, rank) for rank in range(4)}, "json")
    large, pipe, unnumbered = tmp_path / "large_9", tmp_path / "pipe_8", tmp_path / "dump.json"
    with large.open("wb") as stream:
        stream.truncate(MOST_BYTES + 1)
    os.mkfifo(pipe)
    unnumbered.write_bytes(files[0].read_bytes())
    again = tmp_path / "again_1"
    again.write_bytes(files[1].read_bytes())
    found = read([*files, large, pipe, unnumbered, again, tmp_path / "absent_7"], ranks=4)
    assert [place.rank for place in found.ranks] == [1]
    for name in ("large_9", "pipe_8", "dump.json", "again_1"):  # the first four are shown
        assert f"{tmp_path / name} is not read: " in found.sentence


def test_counters_agree_disagree_or_cannot_be_compared(tmp_path: Path) -> None:
    run = simulated(8, 6, at=6, seed=4)
    files = write_flight(tmp_path, {rank: flight_dump(run, rank) for rank in range(8)}, "json")

    def compared(culprit: Culprit | None, ranks: int = 8) -> tuple[str, str]:
        found = read(files, ranks, culprit)
        return found.agreement, found.comparison

    named = Culprit("It is.", "n2", 2, pattern="idle", confidence="high")
    assert compared(named) == ("agree", "Counters agree: they name n2 GPU 2.")
    assert compared(replace(named, gpu=None)) == ("agree", "Counters agree: they name n2.")
    assert compared(replace(named, gpu=1)) == (
        "disagree",
        "Counters disagree: they name n2 GPU 1.",
    )
    assert compared(replace(named, node="n1", gpu=None))[0] == "disagree"
    assert compared(named, ranks=9) == (  # a GPU without a rank: their order says nothing
        "unknown",
        "Counters name n2 GPU 2; where the rank ran is not recorded.",
    )
    assert compared(None) == ("ranks", "Counters name no GPU.")
    assert compared(Culprit("No culprit can be named: it."))[0] == "ranks"
    ended = simulated(8, 0, at=999, seed=5)
    files = write_flight(tmp_path, {rank: flight_dump(ended, rank) for rank in range(8)}, "json")
    assert compared(named) == ("counters", "Counters name n2 GPU 2.")
    assert compared(None) == ("none", "Counters name no GPU.")


def test_a_record_of_the_gpu_overrules_the_order_of_ranks(tmp_path: Path) -> None:
    run = simulated(8, 6, at=6, seed=4)
    document = json.loads(ras_json(run))
    file = tmp_path / "ras.json"
    for change, expected in (
        ({"host": "n1", "nvml_dev": 3}, ("n1", 3)),
        ({"nvml_dev": 9}, (None, 9)),  # by order it would be 2
        ({}, ("n2", 2)),
    ):
        changed = json.loads(json.dumps(document))
        changed["communicators"] = changed["communicators"][:1]
        changed["communicators"][0]["ranks"][6].update(change)
        file.write_text(json.dumps(changed), encoding="utf-8")
        found = read([file])
        assert [(place.node, place.gpu) for place in found.ranks] == [expected], change


def test_text_json_page_and_ticket_have_the_sentence_with_hostile_names_escaped(
    tmp_path: Path,
) -> None:
    name = "<script>\x1b[2J\u202e" + "y" * 1000
    run = Run({name: (0, 1)}, {name: KINDS}, {name: {0: [STARTED], 1: []}})
    files = write_flight(tmp_path, {rank: flight_dump(run, rank) for rank in (0, 1)}, "json")
    held = gpus({"node": "n1", "gpu": 0}, {"node": "n1", "gpu": 1})
    row = summary(elapsed_s=6000.0, gpus=2, samples=800)
    plain = build_job_report(row, held, JOB_MINUTES.empty(), [], START)
    assert "ranks" not in job_json(plain)
    report = replace(plain, ranks=read(files, ranks=2))
    shown = " ".join(job_text(report, width=120).split())
    page, ticket = job_html(report), job_ticket(report)
    assert "1 other waited for rank 1 (n1 GPU 1, if ranks are in the order" in shown
    assert job_json(report)["ranks"]["ranks"][0]["rank"] == 1
    for document in (shown, page, ticket):
        assert "waited for rank 1" in document.replace("\N{NO-BREAK SPACE}", " ")
        assert "\x1b" not in document
        assert "\u202e" not in document
        assert "y" * 600 not in document
    assert "group <script>" not in page
    assert "\\<script\\>" in ticket
