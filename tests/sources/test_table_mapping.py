"""Mappings: mistakes are named with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph.catalog.errors import ConfigError, UsageError
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
