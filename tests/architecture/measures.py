"""Measures of the source, from its own syntax trees; ``python tests/architecture/measures.py`` prints them."""

from __future__ import annotations

import ast
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def modules() -> dict[str, Path]:
    """Each module of ``src/headrace``, by its dotted name."""
    return {_dotted(path): path for path in sorted((SOURCE / "headrace").rglob("*.py"))}


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def function_lines(trees: Mapping[str, ast.Module]) -> dict[str, int]:
    """How long functions and methods are, by name and place: decorators excluded, docstring included."""
    return {
        f"{module}.{node.name}, line {node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def classes_defined_twice(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """The modules of top-level classes that share a name, by that name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Which modules of ``headrace`` each one imports: at its top, in a function, or for type checkers only."""
    return {module: set(_imported(tree, trees)) - {module} for module, tree in trees.items()}


def _imported(tree: ast.Module, known: Mapping[str, ast.Module]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of imports, if there is any: each module is imported by the next."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "."


def main() -> None:
    """Prints the measures."""
    texts = {module: path.read_text() for module, path in modules().items()}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    lines = {module: len(text.splitlines()) for module, text in texts.items()}
    files = Counter(map(_room, lines))
    print(f"{'room':12} {'lines':>7} {'files':>6}")
    for room in sorted(files):
        print(f"{room:12} {sum(lines[module] for module in lines if _room(module) == room):7,} {files[room]:6}")
    print(f"{'all':12} {sum(lines.values()):7,} {len(lines):6}")
    print(f"tests        {sum(len(path.read_text().splitlines()) for path in (ROOT / 'tests').rglob('*.py')):7,}")
    sizes = [*function_lines(trees).values()]
    print(f"\nlines of a function: median {statistics.median(sizes):.0f}, ", end="")
    print(f"p90 {statistics.quantiles(sizes, n=10)[-1]:.0f}, most {max(sizes)} ({len(sizes):,} functions)")
    longest = max(lines, key=lines.__getitem__)
    print(f"lines of a file: most {lines[longest]} ({longest})")
    twice = classes_defined_twice(trees)
    print(f"class names defined twice: {len(twice)}")
    for name, where in twice.items():
        print(f"  {name}: {', '.join(where)}")
    print(f"a circle of imports: {', '.join(circle(imports(trees))) or 'none'}")


if __name__ == "__main__":
    main()
