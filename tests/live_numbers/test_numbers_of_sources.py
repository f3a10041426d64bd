"""From what producers write to what commands print: every counter, recomputed; exporter, dmon,
Prometheus, NVML.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from plain_numbers import (
    BOTTLENECKS,
    COUNTERS,
    CSV,
    FIELDS,
    PRESETS,
    RAW,
    SLICES,
    Values,
    kind,
    percent,
    real,
    reported,
)
from servers.exporter import Gpu as Unit
from servers.exporter import Node, exporter, page
from servers.faulty import Reply, SeenRequest, faulty
from tachograph.cli import main

FAKE = Path(__file__).parents[1] / "live_sources" / "fake_dcgmi.py"
Key = tuple[int, int | None]
Watch = Callable[..., str]
SINGLE = 1e-6  # rows of exporters and Prometheus are in single precision


@pytest.fixture
def watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Watch:
    """Runs `tachograph watch` in this process, in an empty folder, outside of jobs; returns what
    it printed.
    """
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("SLURM_", "CUDA_", "TACHOGRAPH_", "COLUMNS")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))

    def run(*options: str) -> str:
        code = main(["watch", *options])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return run


def units(gpus: Mapping[int, Mapping[int, float]] = RAW) -> list[Unit]:
    found = [
        Unit(gpu, {f"DCGM_FI_{FIELDS[k][0]}": v for k, v in raw.items()})
        for gpu, raw in gpus.items()
    ]
    for (gpu, mig), raw in SLICES.items():
        labels = {"GPU_I_ID": str(mig), "GPU_I_PROFILE": "1g.10gb"}
        found.append(
            Unit(gpu, {f"DCGM_FI_{FIELDS[k][0]}": v for k, v in raw.items()}, labels=labels)
        )
    return found


EXPECTED: dict[Key, Values] = {(gpu, None): reported(raw) for gpu, raw in RAW.items()}
EXPECTED |= {key: reported(raw) for key, raw in SLICES.items()}


def assert_json(printed: str, expected: Mapping[Key, Values], rel: float = SINGLE) -> None:
    found = {(one["gpu"], one["mig"]): one for one in json.loads(printed)}
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert {name: found[key][name] for name in COUNTERS} == {
            name: None if value is None else pytest.approx(value, rel=rel)
            for name, value in values.items()
        }, key
        assert_judged(found[key], values, rel)


def assert_judged(one: Mapping[str, Any], values: Values, rel: float = 1e-12) -> None:
    wanted = real(values, PRESETS["ai"])
    assert one["real_utilisation"] == (None if wanted is None else pytest.approx(wanted, abs=rel))
    assert one["class"] == kind(values, PRESETS["ai"])
    assert one["bottleneck"] == BOTTLENECKS[one["class"]]
    assert bool(one["needs"]) == (one["class"] == "unknown")
    assert all(values[name] is None for name in one["needs"])


def assert_csv(printed: str, expected: Mapping[Key, Values]) -> None:
    found = {
        (int(one["gpu_id"]), int(one["mig"]) if one["mig"] else None): one
        for one in rows_of(printed)
    }
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        cells = found[key]
        for column, (counter, factor, digits) in CSV.items():
            value = values[counter]
            if value is None:
                assert cells[column] == "", (key, column)
            else:
                assert float(cells[column]) == pytest.approx(
                    value * factor, rel=SINGLE, abs=0.51 * 10.0**-digits
                ), (
                    key,
                    column,
                )
        both = [values[f"nvlink_{way}_bytes_per_s"] for way in ("tx", "rx")]
        # GB/s, both directions.
        total = None if None in both else sum(one or 0.0 for one in both) / 1e9
        assert cells["nvlink_gbps"] == ("" if total is None else f"{total:.3f}")
        wanted = real(values, PRESETS["ai"])
        assert cells["real_util_pct"] == ("" if wanted is None else f"{100 * wanted:.2f}")
        assert cells["status"] == kind(values, PRESETS["ai"])


def rows_of(printed: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed)))


def assert_table(printed: str, expected: Mapping[Key, Values]) -> None:
    head, *lines = printed.splitlines()
    for line, ((gpu, mig), values) in zip(lines, expected.items(), strict=True):
        cells = {
            title: line[max(0, head.index(title) + len(title) - 6) :].split()
            for title in ("UTIL", "SM", "TENS")
        }
        assert line.split()[0].partition(":")[2] == (f"{gpu}" if mig is None else f"{gpu}.{mig}")
        for title, counter in (
            ("UTIL", "gpu_util"),
            ("TENS", "tensor_active"),
            ("DRAM", "dram_active"),
        ):
            end = head.index(title) + len(title)
            assert line[:end].split()[-1] == percent(values[counter]), (title, line)
        assert line[: head.index(" SM ") + 3].split()[-1] == percent(values["sm_active"])
        assert line[: head.index("REAL") + 4].split()[-1] == percent(real(values, PRESETS["ai"]))
        power = values["power_w"]
        assert line[: head.index(" W ") + 2].split()[-1] == (
            "-" if power is None else f"{power:.0f}"
        )
        named, name = (
            line[head.index("CLASS") : head.index("REAL")].strip(),
            kind(values, PRESETS["ai"]),
        )
        assert named == name or (name == "idle" and named in ("idle, held", "free")), cells


@pytest.mark.slow
@pytest.mark.parametrize("names", ["old", "new"])
def test_an_exporters_page_comes_out_in_every_form(watch: Watch, names: str) -> None:
    new = {"DCGM_FI_DEV_GPU_UTIL": "DCGM_FI_GPU_UTIL_RATIO", "DCGM_FI_PROF_SM_ACTIVE": "DCGM_FI_SM_UTIL_RATIO",
           "DCGM_FI_DEV_POWER_USAGE": "DCGM_FI_BOARD_POWER_WATTS", "DCGM_FI_DEV_XID_ERRORS": "DCGM_FI_XID_ERROR",
           "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "DCGM_FI_PCIE_REPLAY_TOTAL"}  # fmt: skip
    with exporter({"n1": {}}) as server:
        server.nodes["n1"].gpus = units()
        for unit in server.nodes["n1"].gpus if names == "new" else ():
            unit.values = {new.get(metric, metric): value for metric, value in unit.values.items()}
        request = ("--url", server.url("n1"), "--all", "--once")
        assert_json(watch(*request, "--json"), EXPECTED)
        assert_csv(watch(*request, "--csv", "all"), EXPECTED)
        assert_table(watch(*request), EXPECTED)


@pytest.mark.slow
def test_prometheus_answers_with_the_same_numbers(watch: Watch) -> None:
    text = page("n1", Node(units()), 0.0)
    series = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, rest = line.partition("{")
        block, _, value = rest.rpartition("} ")
        labels = dict(part.partition("=")[::2] for part in block.replace('"', "").split(","))
        written = {"inf": "+Inf", "nan": "NaN"}.get(value, value)
        series.append(({"__name__": name, "instance": "n1:9400", **labels}, written))

    def answer(request: SeenRequest) -> Reply:
        """An export of VictoriaMetrics; no other query has a result."""
        if not request.path.endswith("/export"):
            return Reply(b'{"status": "success", "data": {"resultType": "vector", "result": []}}')
        t = round((time.time() - 3) * 1000)
        lines = [
            f'{{"metric":{json.dumps(labels)},"values":[{value}],"timestamps":[{t}]}}'
            for labels, value in series
        ]
        return Reply("\n".join(lines).encode())

    with faulty(answer) as server:
        request = ("--source", "prometheus", "--url", server.url, "--all", "--once")
        assert_json(watch(*request, "--json"), EXPECTED)
        assert_csv(watch(*request, "--csv", "all"), EXPECTED)
        (first, *_) = rows_of(watch(*request, "--csv", "stale_s"))
        assert 2 < float(first["stale_s"]) < 10


@pytest.mark.slow
def test_the_stream_of_dmon_comes_out_with_the_same_numbers(watch: Watch, tmp_path: Path) -> None:
    def cells(raw: Mapping[int, float]) -> dict[str, str]:
        """As it prints them: three digits behind the point, marks for "no value" as N/A."""
        found = {}
        for field, value in raw.items():
            counter = FIELDS[field][1]
            given = reported(raw)[counter] is not None or (field == 140 and value == 0)
            found[str(field)] = (
                (f"{value:.3f}" if field in (155, *range(1001, 1016)) else f"{value:.0f}")
                if given
                else "N/A"
            )
        return found

    rounded = {
        gpu: {k: round(v, 3) if v == v else v for k, v in raw.items()} for gpu, raw in RAW.items()
    }
    # What is wider than its column is cut.
    rounded[0][156] = rounded[2][156] = rounded[3][156] = 12345678
    for raw in rounded.values():
        raw.pop(250, None)
    values = {f"GPU {gpu}": cells(raw) for gpu, raw in rounded.items()}
    shutil.copy(FAKE, tmp_path / "fake_dcgmi.py")
    (tmp_path / "state.json").write_text(json.dumps({"gpus": 4, "values": values, "mode": ""}))
    (tmp_path / "dcgmi").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -S -E "{tmp_path}/fake_dcgmi.py" "$@"\n'
    )
    (tmp_path / "dcgmi").chmod(0o755)
    expected: dict[Key, Values] = {(gpu, None): reported(raw) for gpu, raw in rounded.items()}
    expected[1, None]["dram_active"] = 1.0  # 1.0000001, at three digits
    values["GPU 1"]["1005"] = "1.000"
    (tmp_path / "state.json").write_text(json.dumps({"gpus": 4, "values": values, "mode": ""}))
    request = ("--source", "dmon", "--all", "--once", "--interval", "0.2")
    assert_json(watch(*request, "--json"), expected, rel=1e-12)
    assert_csv(watch(*request, "--csv", "all"), expected)


# --- NVML: percent, mW, mJ, B, MiB/s on the way in
