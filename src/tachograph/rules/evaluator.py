"""What comes of a rule over one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tachograph.rules.checker import Program, Shown
from tachograph.rules.model import BUDGET, Budget, Outcome, Pair, Ranks, Rule
from tachograph.rules.values import ExhaustedError, State


def evaluate(program: Program, job: Ranks, parameters: Mapping[str, float], budget: Budget = BUDGET) -> Outcome:
    """Return the outcome; it never raises, whatever the rule says and the job holds."""
    state = State(job, parameters, budget.steps)
    try:
        for name, run in program.terms:
            state.term = name
            state.values[name] = run(state)
        state.term = ""
        answer = state.values.get(program.rule.output)
        held = _held(program.rule, answer)
        alert = _answer(answer)
        if alert:
            return _alerted(program, state, held, budget)
    except ExhaustedError:
        state.reasons = {f"more than {budget.steps} steps": None, **state.reasons}
        alert = None
    return _outcome(program, state, alert, budget)


def _answer(answer: Any) -> bool | None:
    """Return the alert: of ranks, whether one of them alerts."""
    if isinstance(answer, list):
        return True if True in answer else None if None in answer or not answer else False
    return answer if isinstance(answer, bool) else None


def _held(rule: Rule, answer: Any) -> list[int] | None:
    """Return the places of the ranks that alert; None in a rule of jobs."""
    if rule.level == "job" or not isinstance(answer, list):
        return None
    return [place for place, one in enumerate(answer) if one is True]


def _outcome(program: Program, state: State, alert: bool | None, budget: Budget) -> Outcome:
    unsure = alert is None
    return Outcome(
        alert,
        {name: state.values.get(name) for name, _ in program.terms},
        unknown=tuple(state.missing) if unsure else (),
        reasons=tuple(state.reasons) if unsure else (),
        steps=budget.steps - max(state.left, 0),
    )


def _alerted(program: Program, state: State, held: list[int] | None, budget: Budget) -> Outcome:
    """Return the outcome of a rule that alerts, with its texts."""
    saying = _Saying(state, held, budget)
    text = saying.text(program.template)
    of_template, saying.shown = saying.shown, {}
    metric = saying.text(program.output_metric)
    if any(shown.piece.node is None or shown.inner for shown in program.output_metric):  # it is more than a value
        text = f"{text} {metric}" if text and metric else text or metric
    ranks = _labels(saying.ranks(program.rule)) if held is not None else _labels(_texts([*saying.shown.values()]))
    return Outcome(
        True,
        {name: state.values.get(name) for name, _ in program.terms},
        of_template | saying.shown,
        ranks,
        text if len(text) <= budget.text else f"{text[: budget.text - 3]}...",
        steps=budget.steps - state.left,
    )


def _texts(found: Sequence[Any]) -> list[Any]:
    return [one for value in found for one in (value if isinstance(value, list) else [value])]


def _labels(found: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for one in found if isinstance(one, str)))


class _Saying:
    """Texts for the user. shown: the values in them, by their source."""

    def __init__(self, state: State, held: list[int] | None, budget: Budget) -> None:
        self.state = state
        self.held = held
        self.budget = budget
        self.shown: dict[str, Any] = {}

    def ranks(self, rule: Rule) -> list[str]:
        """Return the names of the ranks that alert."""
        names = self.state.job.labels(rule.level)
        return [str(names[place])[:200] for place in self.held or () if place < len(names)]

    def text(self, pieces: Sequence[Shown]) -> str:
        """Return a text with its values filled in."""
        said: list[str] = []
        conditional = False
        for shown in pieces:
            if sum(map(len, said)) > self.budget.text:
                break  # what follows would be cut anyway
            if shown.run is None:
                said.append(shown.piece.text)
                conditional = False
                continue
            value = self.of_held(shown.run(self.state), of_ranks=shown.of_ranks)
            if shown.piece.inner is None:
                self.shown.setdefault(shown.piece.text, value)
                said.append(self.value(value, shown.piece.unit))
                conditional = False
            elif value is True or (isinstance(value, list) and True in value):
                said += ["; " if conditional else "", self.text(shown.inner)]
                conditional = True
        return "".join(said)

    def of_held(self, value: Any, *, of_ranks: bool) -> Any:
        """Return of values of ranks those of the ranks that alert."""
        if self.held is None or not of_ranks or not isinstance(value, list):
            return value
        return [value[place] for place in self.held if place < len(value)]

    def value(self, value: Any, unit: str) -> str:
        """Return a value as people read it."""
        if isinstance(value, list):
            self.state.spend(self.budget.shown)
            few = [self.value(one, unit) for one in value[: self.budget.shown]]
            more = [f"and {len(value) - len(few)} more"] if len(value) > len(few) else []
            return ", ".join((*few, *more)) or "none"
        if isinstance(value, Pair):
            return f"{self.value(value.first, '')}: {self.value(value.second, '')}"
        if value is None:
            return "unknown"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return "".join(letter if letter.isprintable() else "?" for letter in value)
        return _number(value, unit)


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.3g}" if abs(value) < 9.995 else f"{100 * value:.4g}"
    return f"{value / 3600 if unit == 'h' else value:.4g}"
