"""Node lists: counted before they are expanded, so that a broken one cannot fill the memory."""

from __future__ import annotations

import re
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from tachograph.sources.slurm.fields import BadRowError

MAX_NODES = 100_000  # Slurm itself stops at 65,533 nodes (MaxNodes, slurm.conf(5))
_LONGEST = 4_000_000  # characters

_TERM = re.compile(r"(?:[A-Za-z0-9_.-]|\[\d{1,12}(?:-\d{1,12})?(?:,\d{1,12}(?:-\d{1,12})?)*\])+(?:,|$)", re.ASCII)
_BRACKET = re.compile(r"\[([^\]]*)\]")
_MIXED = re.compile(r"(?<![\d-])(0\d*)-(\d+)(?![\d-])", re.ASCII)


@lru_cache(maxsize=4096)
def count_nodes(expression: str) -> int:
    """Return how many nodes a hostlist expression names (one named twice counts twice), without expanding it.

    >>> count_nodes("nid[001224-001226,001300],login1"), count_nodes("n[1-100000000]")
    (5, 100000000)

    Errors: BadRowError when it is no hostlist expression.
    """
    if not expression or len(expression) > _LONGEST or expression.endswith(","):
        raise BadRowError("bad_node_list", "node_list")
    total = position = 0
    while position < len(expression):
        term = _TERM.match(expression, position)
        if not term:
            raise BadRowError("bad_node_list", "node_list")
        product = 1
        for bracket in _BRACKET.finditer(term[0]):
            product *= sum(_width(part) for part in bracket[1].split(","))
        total += product
        position = term.end()
    return total


def _width(part: str) -> int:
    low, _, high = part.partition("-")
    if high and int(high) < int(low):
        raise BadRowError("bad_node_list", "node_list")
    return int(high) - int(low) + 1 if high else 1


def _split_padding(found: re.Match[str]) -> str:
    """`09-101`, which Slurm writes and ClusterShell refuses, as `09-99,100-101`."""
    low, high = found[1], found[2]
    if len(high) <= len(low):
        return found[0]
    return f"{low}-{'9' * len(low)},1{'0' * len(low)}-{high}"


@lru_cache(maxsize=4096)
def expand_nodes(expression: str) -> tuple[str, ...]:
    """Return the nodes a hostlist expression names, short form, each once, in the order written.

    >>> expand_nodes("gpu[09-10,12],a1"), expand_nodes("n1.example.org")
    (('gpu09', 'gpu10', 'gpu12', 'a1'), ('n1',))

    Errors: BadRowError when it is none, or names more than 100,000 nodes.
    """
    expression = expression.strip()
    if count_nodes(expression) > MAX_NODES:
        raise BadRowError("too_many_nodes", "node_list")
    terms = (match[0].removesuffix(",") for match in _TERM.finditer(expression))
    return tuple(dict.fromkeys(short_name(node) for term in terms for node in _expand_term(term)))


def _expand_term(term: str) -> list[str]:
    if "[" not in term:
        return [term]
    try:
        return [str(node) for node in NodeSet(_MIXED.sub(_split_padding, term), resolver=RESOLVER_NOGROUP)]
    except NodeSetException:
        raise BadRowError("bad_node_list", "node_list") from None


def short_name(node: str) -> str:
    """Return a host name without its domain; an IP address stays whole.

    >>> short_name("nid001224.chn.perlmutter"), short_name("10.0.0.7")
    ('nid001224', '10.0.0.7')
    """
    return node if node.replace(".", "").isdigit() else node.partition(".")[0]
