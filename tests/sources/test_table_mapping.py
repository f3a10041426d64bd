"""Mappings: mistakes are named with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph.catalog.errors import ConfigError
from tachograph.sources.table.mapping import load, parse, placeholders

GOOD = """
time.column = "t"
node.column = "n"
gpu.column = "g"
columns.u = "gpu_util"
"""


def test_a_mapping_and_its_defaults() -> None:
    mapping = parse(GOOD)
    assert (mapping.table, mapping.delimiter, mapping.decimal, mapping.time.format) == ("gpu_samples", ",", ".", "auto")
    assert mapping.targets["u"].to == "gpu_util"


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
        (GOOD + "metric = { column = 'm', value = 'v' }\ncolumns.'a{gpu}' = 'power_w'", "long file"),
    ],
)
def test_mistakes_are_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mapping.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))


def test_a_mapping_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe4")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "latin.toml")


def test_placeholders_match_whole_names() -> None:
    pattern = placeholders("{node}.gpu{gpu} [%]")
    assert pattern is not None
    found = pattern.fullmatch("n01.gpu12 [%]")
    assert found is not None
    assert found.groupdict() == {"node": "n01", "gpu": "12"}
    assert pattern.fullmatch("n01.gpu [%]") is None
    assert placeholders("util") is None
