"""Single values of Slurm: ids, states, TRES, exit codes, durations, node lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog.config import Configuration, NodeOptions
from tachograph.catalog.errors import ConfigError
from tachograph.sources.slurm.fields import (
    BadRowError,
    JobId,
    base_state,
    count_nodes,
    exit_status,
    expand_nodes,
    job_id,
    json_limit_s,
    json_number,
    json_text,
    node_aliases,
    seconds,
    whole,
)
from tachograph.sources.slurm.gres import tres


@pytest.mark.parametrize(
    ("display", "raw", "expected"),
    [
        ("123", "123", JobId("123")),
        ("123", "", JobId("123")),
        ("3_5", "3", JobId("3", "3_5", "3", 5)),
        ("3_5", "", JobId("3_5", "3_5", "3", 5, raw_known=False)),
        ("3_[0-5%4]", "3", JobId("3", "3_[0-5%4]", "3")),
        ("3_[0-5]%4", "", JobId("3", "3_[0-5]%4", "3")),
        ("3_[1,3,...]", "3", JobId("3", "3_[1,3,...]", "3")),
        ("11+1", "12", JobId("12", "11+1", het_job_id="11", het_offset=1)),
        ("11+1", "", JobId("11+1", "11+1", het_job_id="11", het_offset=1, raw_known=False)),
        ("123.batch", "123.batch", JobId("123", step="batch")),
        ("123.0", "", JobId("123", step="0")),
        ("3_5.extern", "3.extern", JobId("3", "3_5", "3", 5, step="extern")),
        ("11+1.0", "12.0", JobId("12", "11+1", het_job_id="11", het_offset=1, step="0")),
        ("123.0+1", "123.0+1", JobId("123", step="0+1")),
        ("", "123", JobId("123")),
    ],
)
def test_job_ids_are_taken_apart(display: str, raw: str, expected: JobId) -> None:
    assert job_id(display, raw) == expected


@pytest.mark.parametrize(
    ("written", "state"),
    [
        ("COMPLETED", "COMPLETED"),
        ("CANCELLED by 1234", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("CD", "COMPLETED"),
        ("OOM", "OUT_OF_MEMORY"),
        ("TI+", "TIMEOUT"),
        ("EXPEDITING", "EXPEDITING"),
        ("COMPLETED+", "COMPLETED"),
        ("CANCELLED by 1000", "CANCELLED"),
        ("cancelled by ana", "CANCELLED"),
        ("running", "RUNNING"),
        ("COMPLETING,RUNNING", "RUNNING"),
        ("LAUNCH_FAILED", "LAUNCH_FAILED"),
        ("", None),
        ("Unknown", None),
    ],
)
def test_states(written: str, state: str | None) -> None:
    assert base_state(written) == state


def test_numbers_of_other_fields() -> None:
    codes = ("3:0", "0:15", "255:0")
    assert [exit_status(written) for written in codes] == [(3, None), (0, 15), (127, None)]
    assert [whole(written) for written in ("4.0", "Unknown")] == [4, None]


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_duration_survives_slurms_notation(
    days: int, hours: int, minutes: int, rest: int
) -> None:
    expected = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    written = (
        f"{days}-{hours:02}:{minutes:02}:{rest:02}"
        if days
        else f"{hours:02}:{minutes:02}:{rest:02}"
    )
    assert seconds("", written) == expected
    assert seconds(str(expected), "") == expected


@pytest.mark.parametrize("written", ["UNLIMITED", "Partition_Limit", "", "NOT_SET", "INVALID"])
def test_a_limit_that_is_none(written: str) -> None:
    assert seconds("", written) is None


@pytest.mark.parametrize(
    ("expression", "nodes"),
    [
        ("gpu01", ["gpu01"]),
        ("nid[001224-001226,001300]", ["nid001224", "nid001225", "nid001226", "nid001300"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[09-11]", ["n09", "n10", "n11"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("n[98-101]", ["n98", "n99", "n100", "n101"]),
        ("n[099,9]", ["n9", "n099"]),
        ("n[08-101,7]x", [f"n{i:02}x" for i in range(8, 100)] + ["n100x", "n101x", "n7x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("b2,a1,b2", ["b2", "a1"]),
        ("n1.example.org", ["n1"]),
    ],
)
def test_node_lists(expression: str, nodes: list[str]) -> None:
    expanded = expand_nodes(expression)
    assert sorted(expanded) == sorted(nodes)
    assert count_nodes(expression) >= len(expanded)
    # In the order of the list.
    assert expand_nodes("z[3-4],a1,m[1,5]") == ("z3", "z4", "a1", "m1", "m5")


# {reason: (how it is read, texts)}
REFUSED: Mapping[str, tuple[Callable[[str], object], list[str]]] = {
    "bad_job_id": (job_id, ["", "1 2", "9" * 19, *["abc", "0", "12a", "-5", "1_", "1+", "١٢"]]),
    "bad_state": (
        base_state,
        ["A" * 41, *["2026-01-01T00:00:00", "3:0", "cpu=4", "SLEEPING", "COMPL+", "RUNNING,SLEEPING", "+", "C+"]],
    ),
    "bad_tres": (tres, ["gpu01", "gres/gpu=x", "cpu=", "cpu=1,,node=1", "gres/gpu=-1"]),
    "bad_exit_code": (exit_status, ["three"]),
    "bad_count": (whole, ["4.5"]),
    "bad_duration": (partial(seconds, ""), ["soon"]),
    "bad_node_list": (
        expand_nodes,
        ["", "n 1", f"n[{'1' * 99}]",
         *["n[", "n[]", "n[1-", "n[5-1]", "n[1-2]]", "a,,b", "a,", "@all", "n*", "n[1-3/2]", "a!b"]],
    ),
    "too_many_nodes": (
        expand_nodes, ["n[1-100000000]", "a[1-1000]b[1-1000]c[1-1000]", "n[0-999999999999]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "written"), [(why, text) for why, (_, texts) in REFUSED.items() for text in texts]
)
def test_what_cannot_be_read_is_refused(reason: str, written: str) -> None:
    read, _ = REFUSED[reason]
    with pytest.raises(BadRowError, match=reason):
        read(written)


@given(st.sets(st.integers(0, 120), min_size=1, max_size=60), st.integers(1, 6))
def test_a_folded_node_list_unfolds_to_the_same_nodes(numbers: set[int], width: int) -> None:
    names = [f"n{number:0{width}}" for number in sorted(numbers)]
    ends: list[list[int]] = []
    for number in sorted(numbers):
        if ends and number == ends[-1][-1] + 1:
            ends[-1][1:] = [number]
        else:
            ends.append([number])
    ranges = ["-".join(f"{number:0{width}}" for number in end) for end in ends]
    for parts in ([name[1:] for name in names], ranges):
        folded = f"n[{','.join(parts)}]"
        assert sorted(expand_nodes(folded)) == sorted(names)
        assert count_nodes(folded) == len(names)


LARGE = 1 << 62


@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        (5, 5, "5"),
        ("7", 7, "7"),
        ("1" * 18, int("1" * 18), "1" * 18),
        ("1" * 19, None, "1" * 19),
        ("٣", None, "٣"),
        ("", None, None),
        (True, None, None),
        (7.0, 7, "7"),
        (7.5, None, "7.5"),
        (float("nan"), None, None),
        (LARGE - 1, LARGE - 1, str(LARGE - 1)),
        (-LARGE, None, str(-LARGE)),
        ([], None, None),
        (["a", "b"], None, "a"),
        ({"set": True, "infinite": False, "number": 7}, 7, None),
        ({"set": False, "number": 7}, None, None),
        ({"set": True, "infinite": True, "number": 7}, None, None),
    ],
)
def test_numbers_and_texts_of_documents(
    value: object, number: int | None, text: str | None
) -> None:
    assert (json_number(value), json_text(value)) == (number, text)
    nested = {"a": {"b": value}}
    assert (json_number(nested, "a", "b"), json_text(nested, "a", "b")) == (number, text)
    assert (json_number(nested, "b"), json_number(value, "a", "b")) == (None, None)


@pytest.mark.parametrize(
    ("minutes", "limit_s"),
    [(0, 0.0), (90, 5400.0), (-1, None), (0xFFFFFFFD, 60.0 * 0xFFFFFFFD), (0xFFFFFFFE, None)],
)
def test_limits_of_documents(minutes: int, limit_s: float | None) -> None:
    assert json_limit_s({"limit": minutes}, "limit") == limit_s


@pytest.mark.parametrize(
    ("written", "nodes", "aliases"),
    [
        ("a[1-2]", "b[3-4]", {"a1": "b3", "a2": "b4"}),
        ("gpu01.example.org", "n1", {"gpu01": "n1"}),
        ("a[1-3]", "b[1-2]", None),
        ("a[", "b1", None),
    ],
)
def test_other_names_of_nodes(written: str, nodes: str, aliases: dict[str, str] | None) -> None:
    configuration = Configuration(nodes=NodeOptions(aliases={written: nodes}))
    if aliases is not None:
        assert node_aliases(configuration) == aliases
        return
    with pytest.raises(ConfigError, match="not lists of as many nodes"):
        node_aliases(configuration)
