"""Mutations of Python sources: one small change each, of which a test should fail.

Docstrings, texts, annotations, messages of errors, imports, decorators and what only checks types
(`strict=True` of `zip`) are not changed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_DEFAULTS = ("get", "fill_null", "getattr", "pop")  # their last argument is a default
_OF_CONTRACT = ("strict", "frozen", "slots", "kw_only", "encoding", "return_dtype", "dtype")


@dataclass(frozen=True, slots=True, order=True)
class Mutation:
    """One change of a file. path: of the file below the package; function: the qualified name of
    the outermost function around it, of a class at its level, and its first line, 0 where there is
    none; index: of the node in `ast.walk`; operator: what is done to it; part: to which operand;
    start, end: lines of the statement; text: the source.
    """

    path: str
    line: int
    column: int
    operator: str
    part: int
    index: int
    function: str
    first_line: int
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.path}:{self.line}:{self.column}:{self.operator}:{self.part}:{self.index}"


def mutations(path: Path, package: Path) -> list[Mutation]:
    """Return all mutations of a file, by line, column and operator."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    lines = source.splitlines()
    indices = {node: index for index, node in enumerate(ast.walk(tree))}
    spans = _spans(tree)
    relative = path.relative_to(package).as_posix()
    found = []
    for node, function, first_line in _changeable(tree, "", 0, inside=False):
        for operator, part in _operators(node):
            line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
            text = lines[line - 1][column : column + 70]
            found.append(
                Mutation(
                    relative,
                    line,
                    column,
                    operator,
                    part,
                    indices[node],
                    function,
                    first_line,
                    *spans[node],
                    text,
                )
            )
    return sorted(found)


def _spans(tree: ast.Module) -> dict[ast.AST, tuple[int, int]]:
    """First and last line of the statement of each node; of a block its head."""
    spans: dict[ast.AST, tuple[int, int]] = {}

    def visit(node: ast.AST, span: tuple[int, int]) -> None:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            span = (node.lineno, max(node.lineno, last))
        spans[node] = span
        for child in ast.iter_child_nodes(node):
            visit(child, span)

    visit(tree, (0, 0))
    return spans


def _changeable(
    node: ast.AST, function: str, first_line: int, *, inside: bool
) -> Iterator[tuple[ast.AST, str, int]]:
    """The nodes that may be changed, each with the outermost function around it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        prefix = f"{function}." if function else ""
        body: list[ast.AST] = list(node.body)
        if isinstance(node, ast.ClassDef):
            name, line, inner = f"{prefix}{node.name}", 0, False
        else:
            first = node.decorator_list[0] if node.decorator_list else node
            name, line, inner = f"{prefix}{node.name}", first.lineno, True
            defaults = [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
            for default in defaults:
                yield from _changeable(default, function, first_line, inside=inside)
        if inside:
            name, line, inner = function, first_line, True
        for child in body:
            yield from _changeable(child, name, line, inside=inner)
        return
    if _is_left_alone(node):
        return
    if isinstance(node, ast.Raise):
        yield node, function, first_line  # dropped as a whole, its message stays
        return
    yield node, function, first_line
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and _is_annotation(node, child):
            continue
        yield from _changeable(child, function, first_line, inside=inside)


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Assert() | ast.arguments():
            return True
        case ast.Expr(value=ast.Constant()):
            return True  # a docstring
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in ("__all__", "__slots__")
        case ast.keyword(arg=name):
            return name in _OF_CONTRACT
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in ("warnings", "logging", "log")
        case ast.Call(func=ast.Name(id=name)):
            return name in ("TypeVar", "cast", "NewType") or name.endswith(("Error", "Warning"))
    return False


def _is_annotation(parent: ast.AST, child: ast.expr) -> bool:
    if isinstance(parent, ast.AnnAssign):
        return child is parent.annotation
    return False


def _operators(node: ast.AST) -> Iterator[tuple[str, int]]:
    """What can be done to a node, and to which of its parts."""
    match node:
        case ast.Compare(ops=ops):
            yield from (("comparison", part) for part in range(len(ops)))
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _COMPUTED:
            if not _is_text(node) and not _is_union(node):
                yield "arithmetic", 0
        case ast.BoolOp():
            yield "and or", 0
        case ast.UnaryOp(op=ast.Not() | ast.Invert()):
            yield "not", 0
        case ast.Constant(value=bool() | int() | float()):
            yield "constant", 0
        case ast.If() | ast.IfExp() | ast.While():
            yield "condition", 0
        case ast.Call(args=[_, *_] as args):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else ""
            name = called.id if isinstance(called, ast.Name) else name
            is_default = name in _DEFAULTS and (len(args) > 1 or name == "fill_null")
            if is_default and not _is_number(args[-1]):
                yield "default", len(args) - 1
        case ast.Return(value=ast.expr() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield "return", 0
    match node:
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.Raise():
            yield "dropped", 0
        case ast.AugAssign() | ast.Continue() | ast.Break():
            yield "dropped", 0
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "dropped", 0


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float)


def _is_text(node: ast.AST) -> bool:
    """Whether a sum is one of texts, which is a message or a name."""
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
    return any(
        isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in parts
    )


def _is_union(node: ast.AST) -> bool:
    """Whether it joins types."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)):
        return False
    parts = (node.left, node.right)
    return any(
        (isinstance(part, ast.Constant) and part.value is None)
        or (isinstance(part, ast.Name) and part.id in ("str", "int", "float", "bytes"))
        or _is_union(part)
        for part in parts
    )


def mutated(source: str, mutation: Mutation) -> ast.Module:
    """Return the tree of a file with one change."""
    tree = ast.parse(source)
    target = next(node for index, node in enumerate(ast.walk(tree)) if index == mutation.index)
    changed = _Change(target, mutation).visit(tree)
    assert isinstance(changed, ast.Module)
    return ast.fix_missing_locations(changed)


class _Change(ast.NodeTransformer):
    """Replaces one node."""

    def __init__(self, target: ast.AST, mutation: Mutation) -> None:
        self._target = target
        self._mutation = mutation

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the node, or what takes its place."""
        if node is not self._target:
            return super().generic_visit(node)
        return ast.copy_location(_changed(node, self._mutation), node)


def _changed(node: ast.AST, mutation: Mutation) -> ast.AST:
    changed = copy.copy(node)
    match mutation.operator, changed:
        case "dropped", ast.stmt():
            return ast.Pass()
        case "comparison", ast.Compare(ops=ops):
            changed.ops = list(ops)
            changed.ops[mutation.part] = _COMPARED[type(ops[mutation.part])]()
        case "arithmetic", ast.BinOp(op=op) | ast.AugAssign(op=op):
            changed.op = _COMPUTED[type(op)]()
        case "and or", ast.BoolOp(op=op):
            changed.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case "not", ast.UnaryOp(operand=operand):
            return operand
        case "constant", ast.Constant(value=bool() as value):
            changed.value = not value
        case "constant", ast.Constant(value=int() | float() as value):
            changed.value = value + 1
        case "condition", ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            changed.test = ast.UnaryOp(ast.Not(), test)
        case "default", ast.Call(args=args):
            is_none = isinstance(args[-1], ast.Constant) and args[-1].value is None
            changed.args = [*args[:-1], ast.Constant(1 if is_none else None)]
        case "return", ast.Return():
            changed.value = ast.Constant(None)
    return changed
