"""What becomes of each import that leads to Beam's inference package, and of each use of what it binds."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.migrate.imports import Binding, FileImports, Use
from headrace.migrate.names import INFERENCE, Counterpart, find_counterpart, is_inference, module_for, names_in


@dataclass
class Fate:
    """What becomes of one binding."""

    keep: bool = True
    moves_to: tuple[str, str] | None = None
    """``from module import name`` takes its place, or with an empty name ``import module``, under the same name."""
    adds: list[str] = field(default_factory=list)
    """Modules to import beside it, or in its place."""

    @property
    def is_changed(self) -> bool:
        """Whether the import statement has to change."""
        return not self.keep or bool(self.adds)

    def add(self, module: str, place: int | None = None) -> None:
        """Adds a module once."""
        if module not in self.adds:
            self.adds.insert(len(self.adds) if place is None else place, module)


class Rewriting:
    """The decisions for a file.

    An imported class or function moves by itself. A module is exchanged under its name in the file if its counterpart
    has all that is used of it; else, as with a package, each chain of attributes is rewritten by itself.
    """

    def __init__(self, imports: FileImports) -> None:
        """Decides."""
        self._uses: dict[Binding, list[Use]] = {binding: [] for binding in imports.bindings}
        for use in imports.uses:
            for binding in use.bindings:
                self._uses[binding].append(use)
        self.chains: dict[Use, Counterpart] = {}
        """The uses whose text changes."""
        self.fates = {binding: self._decide(binding) for binding in imports.bindings}
        for use in imports.uses:
            self._keep_the_package(use)

    def stays(self, use: Use) -> bool:
        """Whether a use still means something in Beam's package, or may."""
        return is_inference(use.path) and use not in self.chains and any(self.fates[one].keep for one in use.bindings)

    def _decide(self, binding: Binding) -> Fate:
        target = find_counterpart(binding.path)
        if target and target.consumed < len(binding.path):  # from a class of Beam's: no import statement does that
            return Fate()
        if target and (target.name or self._fits(binding, target.module)):
            return Fate(keep=False, moves_to=(target.module, target.name))
        if len(binding.path) > 4:
            return Fate()
        return self._decide_chains(binding)

    def _fits(self, binding: Binding, module: str) -> bool:
        """Whether a module of Headrace has all that is used of Beam's."""
        depth = len(binding.path)
        used = [use.path for use in self._uses[binding] if len(use.path) > depth]
        return all(find_counterpart(path) and path[depth] in names_in(module) for path in used)

    def _decide_chains(self, binding: Binding) -> Fate:
        fate = Fate()
        for use in self._uses[binding]:
            target = find_counterpart(use.path)
            is_clear = len({one.path for one in use.bindings}) == 1
            if target and is_clear and target.consumed > len(binding.path):
                self.chains[use] = target
                fate.add(target.module)
        left = [use for use in self._uses[binding] if use not in self.chains]
        if binding.path == binding.imported:
            fate.keep = bool(left) or not fate.adds
            return fate
        # import apache_beam.ml.inference..., which binds apache_beam
        fate.keep = not binding.is_inference or any(use.path[:2] == INFERENCE[:2] for use in left)
        if not fate.keep and not fate.adds:
            own = module_for(binding.imported[3] if len(binding.imported) > 3 else "")
            fate = Fate(keep=own is None, adds=[own] if own else [])
        return fate

    def _keep_the_package(self, use: Use) -> None:
        """``import apache_beam`` in place of ``import apache_beam.ml.inference``, where nothing else binds the name."""
        gone = [one for one in use.bindings if not self.fates[one].keep and one.path == INFERENCE[:1]]
        if use not in self.chains and gone and len(gone) == len(use.bindings):
            self.fates[gone[0]].add(INFERENCE[0], 0)
