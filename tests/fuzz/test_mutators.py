"""Mutations are decided by their seed alone, and differ from what they began with."""

from __future__ import annotations

import random

from mutators import LARGEST, mutate

SEEDS = (b'[{"a": 1, "b": ["x", {}]}, {"a": null}]', b"a,b\n1,2\n3,4\n", b"\x00\x01PAR1" * 9)


def mutations(first: int, last: int) -> list[bytes]:
    return [mutate(SEEDS, random.Random(f"seed/{number}")) for number in range(first, last)]


def test_a_mutation_is_the_same_whatever_came_before() -> None:
    assert mutations(0, 150)[100:] == mutations(100, 150)


def test_nearly_every_mutation_is_a_new_one_and_none_is_too_long() -> None:
    made = mutations(0, 200)
    assert len(set(made)) > 160
    assert sum(one in SEEDS for one in made) < 10
    assert max(map(len, made)) <= LARGEST
