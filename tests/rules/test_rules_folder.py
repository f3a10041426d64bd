"""A site's folder of rules: read anew, each mistake reported, its parameters and those of the
configuration.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruled_jobs import Job, found

from tachograph.catalog.config import Configuration, RuleOptions
from tachograph.catalog.errors import ConfigError, NotFoundError, UsageError
from tachograph.judge.job_judge import JobJudge
from tachograph.judge.judge import RESERVED, rules_in_use
from tachograph.judge.rules.ruleset import read_files, read_rules, with_settings
from tachograph.judge.rules.sources import PARAMETERS, digest


def rule(
    tag: str = "busy_site", expression: str = "activity_mean > limit", **others: Any
) -> dict[str, Any]:
    given = {
        "name": "Busy",
        "tag": tag,
        "parameter": ["limit"],
        "rule_terms": [{"alert": expression}],
    }
    return given | {"output": "alert", "template": "Active {activity_mean}% of the time."} | others


def write(folder: Path, name: str, *rules: dict[str, Any], limit: str = "0.5") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(list(rules)))
    tags = {one["tag"] for one in rules}
    (folder / PARAMETERS).write_text(
        "".join(f"[{tag}]\nlimit = {{ default = {limit} }}\n" for tag in tags)
    )
    return path


def of(folder: Path, **settings: Any) -> RuleOptions:
    return RuleOptions(folder=str(folder), **settings)


BUSY = Job(gpus=[{"gpu_util_mean": 0.6, "gpu_util_max": 0.9}])


def test_a_rule_of_the_site_is_used_and_read_anew(tmp_path: Path) -> None:
    write(tmp_path, "own.json", rule())
    settings = of(tmp_path)
    before = digest(settings)
    assert found(BUSY, "busy_site", read_rules(settings)).sentence == "Active 60% of the time."
    write(tmp_path, "own.json", rule(expression="activity_mean > limit + limit"))
    assert found(BUSY, "busy_site", read_rules(settings)).verdict == "no"
    changed = digest(settings)
    write(tmp_path, "own.json", rule(expression="activity_mean > limit + limit"), limit="0.2")
    assert found(BUSY, "busy_site", read_rules(settings)).verdict == "yes"
    assert len({before, changed, digest(settings)}) == 3


def test_the_digest_of_an_analysis_holds_rules_and_their_values(tmp_path: Path) -> None:
    write(tmp_path, "own.json", rule())
    plain = Configuration()
    variants = (
        plain,
        Configuration(rules=RuleOptions(disabled=("hot_gpu",))),
        Configuration(rules=RuleOptions(parameters={"hot_gpu": {"hot_c": 80.0}})),
        Configuration(rules=of(tmp_path)),
    )
    assert len({JobJudge(one).digest for one in variants}) == len(variants)
    assert JobJudge(plain).digest == JobJudge(Configuration()).digest


def test_a_broken_rule_does_not_stop_the_others(tmp_path: Path) -> None:
    write(tmp_path, "a_own.json", rule(), rule("other", "activity_mean > no_such_name"))
    (tmp_path / "b_cut.json").write_text('{"name": "x", "tag":')
    (tmp_path / "c_binary.json").write_bytes(bytes(range(128, 256)))
    (tmp_path / "d_empty.json").write_text("")
    (tmp_path / "e_folder.json").mkdir()
    (tmp_path / "f_words.json").write_text('"words"')
    (tmp_path / "notes.txt").write_text("no rules")
    (tmp_path / ".hidden.json").write_text("{")
    ruleset = read_rules(of(tmp_path))
    assert found(BUSY, "busy_site", ruleset).verdict == "yes"
    assert len(ruleset.entries) == len(read_rules(RuleOptions()).entries) + 1
    by_file = {Path(problem.file).name: problem for problem in ruleset.errors}
    assert set(by_file) == {
        f"{name}.json" for name in ("a_own", "b_cut", "c_binary", "d_empty", "e_folder", "f_words")
    }
    assert "no_such_name" in by_file["a_own.json"].message
    assert (by_file["b_cut.json"].line, by_file["c_binary.json"].message) == (
        1,
        "not text in UTF-8",
    )


def test_names_that_are_taken(tmp_path: Path) -> None:
    write(tmp_path, "own.json", rule("hot_gpu"), rule("busy_waiting"), rule("busy_site"))
    write(tmp_path, "second.json", rule("busy_site"))
    ruleset = read_rules(of(tmp_path), reserved=RESERVED)
    message = [problem.message for problem in ruleset.errors]
    assert [("shipped" in one, "Tachograph" in one, "own.json" in one) for one in message if "taken" in one] == [
        (True, False, False), (False, True, False), (False, False, True),
    ]  # fmt: skip
    off = read_rules(of(tmp_path, disabled=("hot_gpu",)), reserved=RESERVED)
    assert not any("'hot_gpu'" in problem.message for problem in off.errors)


def test_parameters_that_are_missing_or_broken(tmp_path: Path) -> None:
    write(tmp_path, "own.json", rule())
    (tmp_path / PARAMETERS).unlink()
    assert "limit" in read_rules(of(tmp_path)).errors[0].message
    for text, message in (
        ("[busy_site]\nlimit = {", "not valid TOML"),
        ("[busy_site]\nlimit = 3\n", "busy_site"),
        ("[busy_site]\nlimit = { default = nan }\n", "finite number"),
        ('[busy_site]\nlimit = { default = "x" }\n', "busy_site"),
    ):
        (tmp_path / PARAMETERS).write_text(text)
        errors = read_rules(of(tmp_path)).errors
        assert any(message in str(problem) for problem in errors), (text, errors)


@pytest.mark.parametrize(
    ("settings", "where", "message"),
    [
        (RuleOptions(folder="/no/such/folder"), "rules.folder", "No such file"),
        (RuleOptions(disabled=("hot_gpus",)), "rules.disabled", "did you mean hot_gpu?"),
        (RuleOptions(parameters={"hot_gpus": {}}), "rules.parameters", "did you mean hot_gpu?"),
        (
            RuleOptions(parameters={"hot_gpu": {"hot": 1.0}}),
            "rules.parameters.hot_gpu",
            "did you mean hot_c?",
        ),
        (RuleOptions(parameters={"hot_gpu": {"hot_c": float("nan")}}), "hot_c", "no threshold"),
        (
            RuleOptions(parameters={"slow_gpu": {"busy_activity": 50}}),
            "rules.parameters.slow_gpu.busy_activity",
            'busy_activity is a fraction: 50 % or 5000 %.; write "50%" or 0.5$',
        ),
        (
            RuleOptions(parameters={"loadimba": {"load_imbalance_ratio_threshold": 1.5}}),
            "load_imbalance_ratio_threshold",
            'write "1.5%" or 0.015, or "150%"$',
        ),
        (RuleOptions(parameters={"hot_gpu": {"hot_c": "warm"}}), "hot_c", "warm is no threshold"),
    ],
)
def test_mistakes_of_the_configuration_name_the_key(
    settings: RuleOptions, where: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as problem:
        read_rules(settings)
    assert where in problem.value.where


def test_a_fraction_may_be_more_than_one_or_a_difference(tmp_path: Path) -> None:
    write(tmp_path, "own.json", rule("own", "activity_mean < slope", parameter=["slope"]))
    (tmp_path / PARAMETERS).write_text('[own]\nslope = { default = -0.2, unit = "fraction" }\n')
    parameters: dict[str, dict[str, float | str]] = {
        "loadimba": {"load_imbalance_ratio_threshold": "150%"},
        "own": {"slope": -0.1},
    }
    ruleset = read_rules(of(tmp_path, parameters=parameters))
    assert not ruleset.errors
    values = ruleset.called("load_imbalance_spread")[0].values
    assert values["load_imbalance_ratio_threshold"] == 1.5
    assert ruleset.called("own")[0].values == {"slope": -0.1}
    changed = with_settings(ruleset, ["own.slope=-0.3"])
    assert changed.called("own")[0].values == {"slope": -0.3}


def test_a_tag_that_rules_share_is_for_all_of_them() -> None:
    settings = RuleOptions(parameters={"loadimba": {"load_imbalance_ratio_threshold": 0.4}})
    values = {
        e.code: e.values["load_imbalance_ratio_threshold"]
        for e in read_rules(settings).called("loadimba")
    }
    assert values == dict.fromkeys(
        ("load_imbalance_waste", "load_imbalance_spread", "load_imbalance_two_sided"), 0.4
    )
    off = read_rules(RuleOptions(disabled=("loadimba",)))
    assert {entry.code for entry in off.disabled} == set(values)
    assert not set(values) & {entry.code for entry in off.entries}


def test_a_rule_that_does_not_exist_is_told_with_one_near() -> None:
    with pytest.raises(NotFoundError, match="did you mean hot_gpu"):
        read_rules(RuleOptions()).only(["hot_gpus"])


def test_files_are_checked_as_they_would_be_in_a_folder(tmp_path: Path) -> None:
    path = write(tmp_path, "own.json", rule(), rule("hot_gpu"))
    checked = read_files([path, tmp_path / "none.json", tmp_path])
    assert [entry.code for entry in checked.entries] == ["busy_site"]
    message = [problem.message for problem in checked.errors]
    assert any("no such file" in one for one in message)
    assert any("shipped rule" in one for one in message)


def test_the_shipped_rules_do_not_depend_on_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "own.json", rule())
    assert [e.code for e in rules_in_use(Configuration(rules=of(tmp_path))).entries][
        -1
    ] == "busy_site"
    shutil.rmtree(tmp_path)
    with pytest.raises(ConfigError):
        rules_in_use(Configuration(rules=of(tmp_path)))


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (None, (1, 1), "not a file"),
        ("a = 1\nb = ?", (2, 5), "not valid TOML: Invalid value"),
        ("[busy_site]\nlimit = {", (1, 1), "not valid TOML: "),
        ("[busy_site]\nlimit = 3", (1, 1), "busy_site: Expected object, got int"),
    ],
)
def test_mistakes_in_parameters_have_their_place(
    tmp_path: Path, text: str | None, place: tuple[int, int], message: str
) -> None:
    write(tmp_path, "own.json", rule())
    (tmp_path / PARAMETERS).unlink()
    if text is None:
        (tmp_path / PARAMETERS).mkdir()
    else:
        (tmp_path / PARAMETERS).write_text(text)
    problem = read_rules(of(tmp_path)).errors[0]
    assert (problem.line, problem.column) == place
    assert problem.message.startswith(message)


def test_no_value_below_zero_unless_the_default_is(tmp_path: Path) -> None:
    write(tmp_path, "own.json", rule(), limit="0")
    ruleset = read_rules(of(tmp_path, parameters={"busy_site": {"limit": 0.0}}))
    assert with_settings(ruleset, ["limit=0"]).called("busy_site")[0].values == {"limit": 0.0}
    with pytest.raises(UsageError, match="negative value"):
        with_settings(ruleset, ["busy_site.limit=-0.1"])
    with pytest.raises(ConfigError, match="no threshold"):
        read_rules(of(tmp_path, parameters={"busy_site": {"limit": -0.1}}))
    for option in ("limit", "=1", " =1", "limit=", "limit=nan", "limit=inf"):
        with pytest.raises(UsageError, match="invalid number"):
            with_settings(ruleset, [option])


def test_advice_and_check_of_a_rule_are_its_own_or_those_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    texts = {"name": "P", "description": "", "criterion": "", "false_positives": []}
    own = [rule("own", advice="Do less.", check="idle_job"), rule("fact", severity="fact")]
    document = texts | {"cures": ["Do", "more."], "rules": [*own, rule("plain")]}
    path.write_text(json.dumps(document))
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps([rule("bare")]))
    tags = ("own", "fact", "plain", "bare")
    values = "".join(f"[{tag}]\nlimit = {{ default = 0.5 }}\n" for tag in tags)
    (tmp_path / PARAMETERS).write_text(values)
    found = {
        entry.code: (entry.advice, entry.check.advice, entry.check.code, entry.check.deciders)
        for entry in read_files([path, plain]).entries
    }
    assert found == {
        "own": ("Do less.", "Do less.", "idle_job", ("own",)),
        "fact": ("Do more.", None, "fact", ()),
        "plain": ("Do more.", "Do more.", "plain", ()),
        "bare": (None, None, "bare", ()),
    }
