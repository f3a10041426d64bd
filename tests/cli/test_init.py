"""`tachograph init`: a short file that reads back as the defaults and is never overwritten; keys
that are gone.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tachograph.catalog.config import Configuration, keys, load, sections
from tachograph.catalog.errors import ConfigError
from tachograph.cli import main
from tachograph.sources.registry import configured_feeds, load_feed

MOST_KEYS = 81
MOST_LINES = 25


def test_the_file_is_short_and_reads_back_as_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.toml"
    assert main(["init", "--config", str(file)]) == 0
    assert capsys.readouterr() == ("", f"wrote {file}, to be edited\n")
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert "docs/configuration.md" in text
    assert load(str(file), {}) == Configuration()
    shown = tomllib.loads(
        "[[sources]]" + re.sub(r"^# ?", "", text.partition("# [[sources]]")[2], flags=re.MULTILINE)
    )
    settings = configured_feeds(Configuration(sources=tuple(shown["sources"])), where="site.toml")
    assert [one.source for one in settings] == ["prometheus", "sacct"]
    for one in settings:
        load_feed(one.source).connect(one, configuration=Configuration()).close()


def test_the_lake_that_is_named_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--lake", 's3://bucket/größe "x"\\', "--quiet"]) == 0
    assert (
        tomllib.loads((tmp_path / "tachograph.toml").read_text(encoding="utf-8"))["lake"]
        == 's3://bucket/größe "x"\\'
    )


def test_a_file_that_exists_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.toml"
    file.write_text("# mine\n", encoding="utf-8")
    assert main(["init", "--config", str(file)]) == 3
    assert file.read_text(encoding="utf-8") == "# mine\n"
    assert capsys.readouterr().err == (
        f"tachograph: {file}: exists already and is left as it is; edit it, or name another "
        "with --config\n"
    )
    absent = tmp_path / "absent" / "site.toml"
    assert main(["init", "--config", str(absent)]) == 3
    assert capsys.readouterr().err.startswith(f"tachograph: {absent}: No such file or directory; ")


def test_there_are_few_keys() -> None:
    numbers = {name: len(keys(table)) for name, table in sections().items()}
    assert sum(numbers.get(name, 1) for name in keys(Configuration)) <= MOST_KEYS


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[bound]\nnear_peak = 0.5", "unknown field 'bound'"),
        ("[serve]\nconcurrent = 9", "serve: unknown field 'concurrent'"),
        ("[act]\nalert_gpus = 9", "act: unknown field 'alert_gpus'"),
        ("[serve]\nmanagers = 5", "serve.managers must be text, not a whole number"),
        ('[site]\ntime_zon = "x"', "site: unknown field 'time_zon'; did you mean time_zone?"),
        ('[[policy]]\naction = "run"', "policy[0].action cannot be 'run'; use one of: "),
        ("[advice]\nruns = 9", "advice: unknown field 'runs'"),
        ('[act]\ndigest = ["staff"]', "act.digest cannot be 'staff'; use users, managers, and "),
    ],
)
def test_a_key_or_value_that_does_not_fit_is_refused(
    tmp_path: Path, line: str, problem: str
) -> None:
    file = tmp_path / "tachograph.toml"
    file.write_text(line, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load(str(file), {})
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="has no key 'runs'"):
        load(None, {"TACHOGRAPH_ADVICE_RUNS": "9"})


def test_a_key_decides_the_values_that_follow_from_it(tmp_path: Path) -> None:
    file = tmp_path / "tachograph.toml"
    file.write_text(
        '[analysis]\nnotebooks = true\n[serve]\nadmins = ["ann", "@hpc"]\nsupport = ["@desk", "bob"]\n'
        '[workers]\ncores = 8\n[waste]\nprices = { "*" = 2.5, L4 = 1.0 }\n'
        '[retention]\nsamples = "90d"\nminutes = "2y"\n'
    )
    found = load(str(file), {})
    analysis, serve = found.analysis, found.serve
    assert (
        analysis.count_zero_windows,
        analysis.zero_temporal_imbalance,
        analysis.pipe_percentile,
    ) == (
        True,
        True,
        False,
    )
    assert (serve.admin_users, serve.admin_groups) == (("ann",), ("hpc",))
    assert (serve.support_users, serve.support_groups) == (("bob",), ("desk",))
    assert found.waste.prices == {"*": 2.5, "L4": 1.0}
    assert found.workers.memory == "28GB"
    of_samples = dict.fromkeys(("gpu_samples", "node_samples", "gpu_scores"), 90)
    assert found.retention.days == of_samples | dict.fromkeys(
        ("job_minutes", "job_node_minutes"), 730
    )


def test_files_of_the_service_are_named_from_the_folder_of_the_configuration(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tachograph.toml"
    names = ("token_file", "slurm_jwt_key", "oidc_secret_file", "managers", "access_log")
    file.write_text("[serve]\n" + "".join(f'{key} = "below/{key}"\n' for key in names))
    found = load(str(file), {}).serve
    assert {key: getattr(found, key) for key in names} == {
        key: f"{tmp_path}/below/{key}" for key in names
    }
    file.write_text(
        '[serve]\nmanagers = "sacctmgr"\naccess_log = "stderr"\nlisten = "unix:/run/serve.sock"\n'
    )
    found = load(str(file), {}).serve
    assert (found.managers, found.access_log, found.listen) == (
        "sacctmgr",
        "stderr",
        "unix:/run/serve.sock",
    )
    file.write_text('[serve]\nlisten = "unix:below/serve.sock"\n')
    assert load(str(file), {}).serve.listen == f"unix:{tmp_path}/below/serve.sock"


@pytest.mark.parametrize(
    ("key", "value", "do"),
    [
        ("act.digest_staff", '["ops@example.org"]', "write the addresses into act.digest"),
        ("serve.socket", '"/run/serve.sock"', 'write serve.listen = "unix:'),
        ("watch.exporter", '"http://localhost:9401/metrics"', "use `tachograph watch --url URL`"),
        ("workers.prologue", '["module load gcc"]', "load modules before"),
    ],
)
def test_a_key_that_is_gone_is_refused_with_what_takes_its_place(
    tmp_path: Path, key: str, value: str, do: str
) -> None:
    section, _, name = key.partition(".")
    file = tmp_path / "tachograph.toml"
    file.write_text(f"[{section}]\n{name} = {value}\n")
    variable = f"TACHOGRAPH_{section}_{name}".upper()
    for path, environment in ((str(file), {}), (None, {variable: value})):
        with pytest.raises(ConfigError) as refused:
            load(path, environment)
        assert refused.value.what == f"{key} is no longer a key"
        assert do in (refused.value.do or "")
