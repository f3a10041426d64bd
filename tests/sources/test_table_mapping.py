"""Mappings: mistakes are named with file and key; columns of jobs by their values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from tachograph.catalog.errors import ConfigError, UsageError
from tachograph.sources.table.job_columns import job_columns
from tachograph.sources.table.mapping import MappingKey, MappingTarget, load, parse

GOOD = """
time.column = "t"
node.column = "n"
gpu.column = "g"
columns.u = "gpu_util"
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = [", "not valid TOML"),
        (GOOD + "colour = 1", "colour"),
        (GOOD + "columns.v = { to = 'power_w', units = 'W' }", "units.*columns"),
        (GOOD + "table = 'rejects'", "table: no table 'rejects'.*gpu_samples"),
        (GOOD + "delimiter = ';;'", "delimiter"),
        (GOOD + "decimal = ','", "decimal"),
        (GOOD + "names = ['a', 'a']", "names"),
        (GOOD + "time.zone = 'Mars/Olympus'", "time.zone.*Mars"),
        (GOOD + "gpu.pattern = '('", "gpu.pattern"),
        (GOOD + "gpu.pattern = 'GPU'", "gpu.pattern: has 0 groups"),
        (GOOD + "gpu.constant = 0", "gpu: has column and constant"),
        (GOOD + "columns.v = 'gpu_utl'", "columns.'v': no column 'gpu_utl'"),
        (GOOD + "columns.v = 'node'", "sections of their own"),
        (GOOD + "columns.v = 'gpu_util'", "'u' and 'v' both become gpu_util"),
        (GOOD + "columns.v = { to = 'power_w', unit = 'MiB' }", "columns.'v'.unit.*use one of"),
        (GOOD + "columns.v = { to = 'power_w', gpu = 1 }", "gpu: is given twice"),
        (GOOD.replace('time.column = "t"', ""), "time.column: missing"),
        (GOOD.replace('node.column = "n"', ""), "node: missing"),
        (GOOD.replace('gpu.column = "g"', ""), "gpu: missing"),
        (GOOD.replace('columns.u = "gpu_util"', ""), "columns: none"),
        ("table = 'jobs'\ncolumns.a = 'job_id'\ngpu.column = 'x'", "gpu: table jobs has none"),
        ("table = 'jobs'\ncolumns.a = { to = 'user', unit = 's' }", "user is no number"),
        (
            GOOD + "metric = { column = 'm', value = 'v' }\ncolumns.'a{gpu}' = 'power_w'",
            "long file",
        ),
        ("table = 'devices'\njob.column = 'j'\ncolumns.a = 'model'", "job: not"),
        (GOOD + "step.column = 's'", "step: "),
        (GOOD + "devices.v = 'power_w'", "devices.'v': no column 'power_w'"),
        (
            GOOD + "table = 'node_samples'\ndevices.v = 'model'",
            "devices: not with table node_samples",
        ),
    ],
)
def test_mistakes_are_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mapping.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        (("gpu.constant=1",), ("gpu", "column"), ""),
        (("gpu.constant = 1",), ("gpu", "constant"), 1),
        (("node.column=Host name",), ("node", "column"), "Host name"),
        (("time.zone=Europe/Berlin", 'time.zone="UTC"'), ("time", "zone"), "UTC"),
        (
            ('columns."u"={ to = "power_w", unit = "mW" }',),
            ("targets", "u"),
            MappingTarget("power_w", "mW"),
        ),
        (("columns.v=power_w",), ("targets", "v"), MappingTarget("power_w")),
    ],
)
def test_settings_replace_keys(
    settings: tuple[str, ...], key: tuple[str, str], value: object
) -> None:
    """A value that is no TOML is text; a column and a constant replace each other."""
    found = getattr(parse(GOOD, settings=settings), key[0])
    assert (found[key[1]] if isinstance(found, dict) else getattr(found, key[1])) == value


@pytest.mark.parametrize("setting", ["gpu", "=1", "a b=1", "gpu.=1", ""])
def test_what_is_no_setting_is_refused(setting: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        parse(GOOD, settings=[setting])


def test_a_setting_is_checked_like_the_file() -> None:
    with pytest.raises(ConfigError, match=r"time\.zone.*Mars"):
        parse(GOOD, settings=["time.zone=Mars/Olympus"])
    with pytest.raises(ConfigError, match="colour"):
        parse(GOOD, settings=["colour=red"])
    with pytest.raises(ConfigError, match="node"):
        parse(GOOD, settings=["node=n1"])


def test_the_node_of_a_file_that_names_none() -> None:
    without = GOOD.replace('node.column = "n"', "")
    with pytest.raises(ConfigError, match="node: missing; add --node NAME"):
        parse(without)
    assert parse(without, node="n7").node.constant == "n7"
    assert parse(without + "node.constant = 'x'", node="n7").node.constant == "n7"
    with pytest.raises(UsageError, match=r"reads the node from column 'n'.*--set node\.constant"):
        parse(GOOD, node="n7")
    assert parse(GOOD, settings=["node.constant=n7"]).node == MappingKey(constant="n7")


STARTS = [datetime(2026, 2, 13, 10, minute) for minute in range(10)]  # noqa: DTZ001
ENDS = [start + timedelta(seconds=1000) for start in STARTS]


def written(times: Sequence[datetime], form: str = "%Y-%m-%d %H:%M:%S") -> list[str]:
    return [time.strftime(form) for time in times]


def listed(**changed: Sequence[object]) -> pl.DataFrame:
    """Ten jobs that ran for 1000 s each."""
    columns = {"jobid": range(1, 11), "start": written(STARTS), "end": written(ENDS), **changed}
    return pl.DataFrame({name: list(values) for name, values in columns.items()})


@pytest.mark.parametrize(
    ("changed", "target"),
    [
        *(
            ({"start": written(STARTS, form), "end": written(ENDS, form)}, {"format": parsed})
            for form, parsed in (
                ("%d.%m.%Y %H:%M:%S.5", "%d.%m.%Y %H:%M:%S%.f"),
                ("%d/%m/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S"),
            )
        ),
        ({"start": [*written(STARTS[:9]), "soon"]}, {}),
        ({"start": [*written(STARTS[:8]), "soon", "later"]}, "no times"),
        ({"start": [*written(STARTS[:9]), "2005-12-31 23:59:59"]}, {}),
        ({"start": [*written(STARTS[:8]), *["2005-12-31 23:59:59"] * 2]}, "no times"),
        ({"end": [*written(ENDS[:9]), "2026-01-01 00:00:00"]}, {}),
        ({"end": [*written(ENDS[:5]), *[" "] * 5]}, {}),  # half of them run
        ({"end": [*written(ENDS[:8]), *["2026-01-01 00:00:00"] * 2]}, "end is before start"),
        ({"submit": written(STARTS)}, {}),
        ({"submit": [*written(STARTS[:8]), *written(ENDS[:2])]}, "start is before submit"),
        *(
            ({"elapsed": [1000 / scale] * 10}, {"scale": scale})
            for scale in (1.0, 60.0, 3600.0, 0.001)
        ),
        ({"elapsed": ["00:16:40"] * 10}, {"scale": 1.0, "unit": "duration"}),
        ({"elapsed": [1012.0] * 9 + [5.0]}, {"scale": 1.0}),  # 2 s and 1 %
        ({"elapsed": [1012.0] * 8 + [5.0] * 2}, "is not end - start"),
        ({"elapsed": [1012.1] * 10}, "is not end - start"),
        ({"elapsed": [1000.0] * 10, "end": ["?"] * 10}, "is not end - start"),
        ({"JobIDRaw": range(10)}, "also job_id"),
        ({"partition": ["gpu", *map(str, range(9))]}, {}),
        ({"partition": range(10)}, "numbers up to 9: no partition"),
        ({"gpus": [0, 1_000_000, *range(8)]}, {}),
        *(({"gpus": [value, *range(9)]}, "no count of gpus") for value in (-1, 1.5, 1_000_001)),
        ({"nodes": range(10)}, {"to": "nodes"}),
        ({"nodes": ["n1"] * 10}, {"to": "node_list"}),
    ],
)
def test_columns_of_a_list_of_jobs_are_what_their_values_say(
    changed: dict[str, Sequence[object]], target: dict[str, object] | str
) -> None:
    columns = job_columns(listed(**changed))
    name = next(iter(changed))
    if columns is None:  # without a start it is no list of jobs
        assert (name, target) == ("start", "no times")
        return
    assert list(columns.targets)[:1] == ["jobid"]
    if isinstance(target, str):
        assert (columns.left[name], columns.targets.get(name)) == (target, None)
        return
    found = columns.targets[name]
    assert {key: getattr(found, key) for key in target} == target
    assert name not in columns.left


def test_a_duration_without_an_end_has_no_unit() -> None:
    columns = job_columns(listed(elapsed=[1000.0] * 10).drop("end"))
    assert columns is not None
    assert columns.left == {"elapsed": "unit unknown: no end to compare it with"}
    assert job_columns(listed().drop("jobid")) is None
