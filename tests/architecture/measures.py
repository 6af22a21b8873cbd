"""Measures of the source, from its own syntax trees; ``python tests/architecture/measures.py`` prints them."""

from __future__ import annotations

import ast
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

Imports = Mapping[str, set[str]]
"""Which modules of ``headrace`` each module imports: at its top, in a function, or for type checkers only."""


class Function(NamedTuple):
    """A function or method."""

    name: str
    """With its module."""
    lines: int
    """Decorators excluded, docstring included."""


def modules() -> dict[str, Path]:
    """Each module of ``src/headrace``, by its dotted name."""
    return {dotted(path): path for path in sorted((SOURCE / "headrace").rglob("*.py"))}


def dotted(path: Path) -> str:
    """A file's name as a module."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def functions(trees: Mapping[str, ast.Module]) -> list[Function]:
    """All of them."""
    return [
        Function(f"{module}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def classes_defined_twice(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """The modules of top-level classes that share a name, by that name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """See ``Imports``."""
    return {module: set(_imported(tree, trees)) - {module} for module, tree in trees.items()}


def _imported(tree: ast.Module, known: Mapping[str, ast.Module]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def circles(graph: Imports) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others: strongly connected components."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            start = stack.index(module)
            group, stack[start:] = stack[start:], []
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in index:
            visit(module)
    return sorted(found)


def main() -> None:
    """Prints the measures."""
    paths = modules()
    trees = {module: ast.parse(path.read_text()) for module, path in paths.items()}
    lines = {module: len(path.read_text().splitlines()) for module, path in paths.items()}
    rooms: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for module, path in paths.items():
        parts = path.relative_to(SOURCE / "headrace").parts
        room = parts[0] if len(parts) > 1 else "."
        rooms[room] += lines[module]
        files[room] += 1
    print(f"{'room':12} {'lines':>7} {'files':>6}")
    for room in sorted(rooms):
        print(f"{room:12} {rooms[room]:7,} {files[room]:6}")
    print(f"{'all':12} {sum(rooms.values()):7,} {sum(files.values()):6}")
    print(f"tests        {sum(len(path.read_text().splitlines()) for path in (ROOT / 'tests').rglob('*.py')):7,}")
    sizes = [function.lines for function in functions(trees)]
    print(
        f"\nlines of a function: median {statistics.median(sizes):.0f}, "
        f"p90 {statistics.quantiles(sizes, n=10)[-1]:.0f}, "
        f"most {max(sizes)} ({len(sizes):,} functions)"
    )
    longest = max(lines, key=lines.__getitem__)
    print(f"lines of a file: most {lines[longest]} ({longest})")
    twice = classes_defined_twice(trees)
    print(
        f"class names defined twice: {len(twice)}",
        *(f"  {name}: {', '.join(at)}" for name, at in twice.items()),
        sep="\n",
    )
    found = circles(imports(trees))
    print(f"circles of imports: {len(found)}", *(f"  {', '.join(group)}" for group in found), sep="\n")


if __name__ == "__main__":
    main()
