"""Types of values, as the checker tells them before any job."""

from __future__ import annotations

from dataclasses import dataclass

from tachograph.rules.values import Run
from tachograph.rules.vocabulary import Base


@dataclass(frozen=True, slots=True)
class Type:
    """What a value is.

    of: "" for a single value; for a list the ranks it is of ("gpu"), so that only lists of the same are computed with
    each other; "each gpu" for the value of one rank inside `for_each`. parts: of a pair. positive: certainly above 0.
    any: a mistake was told already, so nothing more is said about it.
    """

    base: Base
    of: str = ""
    parts: tuple[Base, Base] | None = None
    positive: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it is a list to the one who writes the rule."""
        return bool(self.of) and not self.is_each

    @property
    def is_each(self) -> bool:
        """Whether it is the value of one rank."""
        return self.of.startswith("each ")

    def __str__(self) -> str:
        """As messages say it.

        >>> str(Type("number", "gpu")), str(Type("boolean"))
        ('a list of numbers', 'true or false')
        """
        if self.is_list:
            return {
                "number": "a list of numbers",
                "boolean": "a list of true and false",
                "text": "a list of texts",
                "pair": "a list of tuples",
                "any": "a list",
            }[self.base]
        return {
            "number": "a number",
            "boolean": "true or false",
            "text": "a text",
            "pair": "a tuple",
            "any": "something",
        }[self.base]


@dataclass(frozen=True, slots=True)
class Typed:
    """A type, and what computes the value."""

    type: Type
    run: Run


def nothing(state: object) -> None:
    """Compute what stands for a mistake."""


WRONG = Typed(Type("any"), nothing)
