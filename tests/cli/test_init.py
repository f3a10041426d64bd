"""`tachograph init`: the file has every key, reads back as the defaults, and is never overwritten."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from tachograph.catalog.config import AnalysisOptions, Configuration, NodeOptions, SiteOptions, SlurmOptions, load
from tachograph.cli import main
from tachograph.cli.init import text
from tachograph.sources.registry import configured_feeds, load_feed


def test_the_file_reads_back_as_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "site.toml"
    assert main(["init", "--config", str(file)]) == 0
    assert capsys.readouterr() == ("", f"wrote {file}: every key at its default, to be edited\n")
    assert load(str(file), {}) == Configuration()


def test_every_key_is_in_the_file() -> None:
    written = tomllib.loads(text(Configuration()))
    for field in msgspec.structs.fields(Configuration):
        default = getattr(Configuration(), field.name)
        assert (field.name in written) == (default != ())  # an empty list would keep [[sources]] out
        if isinstance(default, msgspec.Struct):
            assert list(written[field.name]) == [key.name for key in msgspec.structs.fields(default)]


def test_a_remark_stands_at_its_own_key_and_no_other() -> None:
    lines = text(Configuration()).splitlines()
    assert 'time_zone = "UTC"  # of times that Slurm and exports write without an offset' in lines
    assert 'name = ""' in lines  # the key before it has no remark
    assert lines[lines.index("[thresholds]") - 1] == "# When advice is given."


def test_every_remark_of_the_structs_is_in_the_file() -> None:
    values = [Configuration(), *msgspec.structs.asdict(Configuration()).values()]  # not what may be there several times
    tables = [type(value) for value in values if isinstance(value, msgspec.Struct)]
    source = [line for table in tables for line in inspect.getsource(table).splitlines()]
    remarked = {
        line.split(":")[0].strip(): line.split("  # ")[1] for line in source if re.match(r"    \w+: .*  # ", line)
    }
    written = dict(line.split("  # ") for line in text(Configuration()).splitlines() if "  # " in line)
    assert remarked == {line.split(" = ")[0]: remark for line, remark in written.items()}


def test_other_values_read_back_too() -> None:
    configuration = Configuration(
        lake="s3://bucket/größe",
        site=SiteOptions(name='the "big" one\\', time_zone="Europe/Berlin"),
        slurm=SlurmOptions(shared=("debug", "int*")),
        nodes=NodeOptions(models={"nid[001-004]": "A100 SXM 40GB", "b.c": "L4"}, gpus={"nid[001-004]": 4}),
        analysis=AnalysisOptions(pipe_threshold=1e-05, count_zero_windows=True),
    )
    assert msgspec.convert(tomllib.loads(text(configuration)), Configuration) == configuration


def test_the_sources_that_are_shown_can_be_collected_when_their_comments_are_taken_away() -> None:
    _, _, shown = text(Configuration()).partition("#\n# [[sources]]")
    found = tomllib.loads("[[sources]]" + re.sub(r"^# ?", "", shown, flags=re.MULTILINE))["sources"]
    settings = configured_feeds(Configuration(sources=tuple(found)), where="tachograph.toml")
    assert [one.source for one in settings] == ["prometheus", "dcgm-exporter", "sacct", "slurm-live"]
    for one in settings:
        load_feed(one.source).connect(one, configuration=Configuration()).close()


def test_the_lake_that_is_named_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--lake", "lake-of-may", "--quiet"]) == 0
    assert tomllib.loads((tmp_path / "tachograph.toml").read_text(encoding="utf-8"))["lake"] == "lake-of-may"


def test_a_file_that_exists_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "site.toml"
    file.write_text("# mine\n", encoding="utf-8")
    assert main(["init", "--config", str(file)]) == 3
    assert file.read_text(encoding="utf-8") == "# mine\n"
    assert capsys.readouterr().err == (
        f"tachograph: {file}: exists already and is left as it is; edit it, or name another with --config\n"
    )


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "absent" / "site.toml"
    assert main(["init", "--config", str(file)]) == 3
    assert capsys.readouterr().err.startswith(f"tachograph: {file}: No such file or directory; ")


def test_files_of_the_service_are_named_from_the_folder_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "tachograph.toml"
    keys = ("socket", "token_file", "slurm_jwt_key", "oidc_secret_file", "managers", "access_log")
    file.write_text("[serve]\n" + "".join(f'{key} = "below/{key}"\n' for key in keys))
    found = load(str(file), {}).serve
    assert {key: getattr(found, key) for key in keys} == {key: f"{tmp_path}/below/{key}" for key in keys}
    file.write_text('[serve]\nmanagers = "sacctmgr"\naccess_log = "stderr"\nsocket = "/run/serve.sock"\n')
    found = load(str(file), {}).serve
    assert (found.managers, found.access_log, found.socket) == ("sacctmgr", "stderr", "/run/serve.sock")
