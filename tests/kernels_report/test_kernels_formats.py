"""Text, JSON and the page of kernels show the same numbers; text fits the width; the page stands
alone.
"""

from __future__ import annotations

import html
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nsight_reports import PUBLISHED, Made, raw_csv
from tachograph.annexes.share.kernel_facts import KernelsReport, KernelsRequest
from tachograph.annexes.share.kernel_names import labels
from tachograph.annexes.share.kernel_report import build_kernels_report
from tachograph.annexes.share.kernels_html import kernels_html
from tachograph.annexes.share.kernels_json import kernels_json
from tachograph.annexes.share.kernels_sentences import fact_text, factor, limits_sentence
from tachograph.annexes.share.kernels_text import kernels_lines, limited_by, sensitive_to
from tachograph.annexes.share.nsight.reports import read_reports
from tachograph.catalog.config import Configuration
from tachograph.report.lines import to_text

LONG = (
    "void cutlass::device_kernel<cutlass::gemm::GemmUniversal<cute::tuple<int, int>, "
    "Collective<{}>>>(Params)"
)


def report(
    folder: Path,
    kernels: tuple[Made, ...] = PUBLISHED,
    request: KernelsRequest | None = None,
    **how: object,
) -> KernelsReport:
    file = folder / "made.csv"
    file.write_text(raw_csv(kernels, **how), encoding="utf-8")  # type: ignore[arg-type]
    return build_kernels_report(
        read_reports([file]), request or KernelsRequest(matrix=True), configuration=Configuration()
    )


def lines(found: KernelsReport, width: int = 130, *, ascii_only: bool = False) -> str:
    return to_text(kernels_lines(found, width=width), ascii_only=ascii_only)


def test_text_json_and_page_show_the_same_numbers(tmp_path: Path) -> None:
    found = report(tmp_path)
    drawn, values, page = (
        lines(found),
        kernels_json(found),
        kernels_html(found).replace("\xa0", " "),
    )
    cells = [
        html.unescape(re.sub(r"<[^>]+>", "", cell))
        for cell in re.findall(r"<td[^>]*>(.*?)</td>", page)
    ]
    (part,) = found.parts
    for view, kernel in zip(part.kernels, values["gpus"][0]["kernels"], strict=True):
        (line,) = [
            line
            for line in drawn.splitlines()
            if re.match(rf" ?{view.number}  {re.escape(view.label)} ", line)
        ]
        start = cells.index(view.label)
        row = cells[start : start + 13]
        for name in ("dram", "occupancy", "sm_share", "gpu_util"):
            assert kernel["uses"][name] == view.facts[name].value
            assert fact_text(view.facts[name]) in line
            assert fact_text(view.facts[name]) in row
        for name in ("score_gpu_practice", "score_gpumem_practice"):
            assert kernel["scores"][name] == view.scores[name].value
            assert fact_text(view.scores[name]) in row
        for words in (limited_by(view), sensitive_to(view)):
            assert words in line
            assert words in row
        assert kernel["limits"]["words"] == limits_sentence(view.limits)
        plain = html.unescape(page)
        assert limits_sentence(view.limits) in plain
        for fact in view.facts.values():
            assert kernel["uses"][fact.name] == fact.value
    assert part.pairs is not None
    pairs = values["gpus"][0]["pairs"]
    assert [pair["slowdown"] for pair in pairs] == part.pairs.slowdown.ravel().tolist()
    assert all(factor(pair["slowdown"]) in page for pair in pairs)


def test_nothing_is_wider_than_it_may_be(tmp_path: Path) -> None:
    found = report(tmp_path)
    for width in (52, 60, 70, 80, 100, 140):
        for line in lines(found, width).splitlines():
            assert len(line) <= width or "collect it with" in line, line
    (part,) = found.parts
    narrow = " ".join(lines(found, 52).split())
    for view in part.kernels:  # goes on below itself, and is not cut
        assert all(word in narrow for word in sensitive_to(view).split()), view.label
    explained = report(tmp_path, request=KernelsRequest(explain="copy"))
    for line in lines(explained, 80).splitlines():
        assert len(line) <= 80, line


def test_one_kernel_in_full(
    tmp_path: Path, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = KernelsRequest(explain="mm_1024")
    explained = report(Path(), PUBLISHED[10:11], request, launches=3, without=("lts__t_sector",))
    assert lines(explained, 110) == snapshot


def test_kernels_are_distinguished(tmp_path: Path) -> None:
    named = (
        ("void a<1>(int)", 128),
        ("void a<2>(int)", 128),
        ("b(int)", 128),
        ("b(int)", 256),
        ("c", 64),
    )
    kernels = tuple(Made(name, 132, threads, 1.0) for name, threads in named)
    (part,) = report(tmp_path, kernels).parts
    assert sorted(labels([view.kernel for view in part.kernels])) == [
        "a<1>",
        "a<2>",
        "b x128",
        "b x256",
        "c",
    ]


def test_names_that_differ_in_a_control_character_are_distinguished(tmp_path: Path) -> None:
    names = ("void a<1>(int)", "void a<1>(int )", "b\x01c", "b\\x01c")
    (part,) = report(tmp_path, tuple(Made(name, 132, 128, 1.0) for name in names)).parts
    found = {view.label for view in part.kernels}
    assert len(found) == 4
    assert all(label.isprintable() for label in found)


def test_long_names_of_thousands_of_kernels_are_distinguished_soon(tmp_path: Path) -> None:
    (part,) = report(tmp_path, PUBLISHED[10:11]).parts
    kernel = part.kernels[0].kernel
    many = [
        replace(kernel, name=LONG.format(place), short="cutlass::device_kernel")
        for place in range(20_000)
    ]
    begin = time.process_time()
    assert len(set(labels(many))) == len(many)
    # 0.4 s on a machine at rest; a minute where each is compared with all.
    assert time.process_time() - begin < 5
