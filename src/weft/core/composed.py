"""Composed: objectives built of objectives. Parts are hyperparameters, names are prefixed, traits follow by rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from torch import Tensor, nn

from weft.core.configured import Configured, closest
from weft.core.objective import RAGGED, Capability, Objective, Output, Solution
from weft.core.random import place

if TYPE_CHECKING:
    from weft.core.source import Batch, Source, Spec
    from weft.core.trees import Params

__all__ = ["Composed"]

Value = TypeVar("Value")


class Composed(Objective):
    """An objective whose hyperparameters are objectives: one each, or several in a dictionary by name.

    The composer makes the parts' networks with `assemble`, asks them with `ask`, and says in `forward` what becomes of
    their losses. What follows by rule:

    - a part's parameters are called `prior.net...`, after the hyperparameter, or `heads.mass.net...`, with its name in
      a dictionary; what `get_params` and `set_params` call it is spelled `heads__mass`;
    - of the batch every part is shown the fields that are `shared` as they are, and of its other ones its own, which
      are called `mass_y` outside; the wrapped part is shown the whole batch;
    - decomposable, movable: all parts are; on-policy: any part is; bootstraps: the largest discount of any; fields,
      and their kinds: the shared ones and all parts' own, in their order; a table is read as its parts read it, with
      gaps where all of them take them;
    - the wrapped part's capabilities are offered as they are called, another one's as `mass_predict`; targets,
      optimizer, class weights and progress are the wrapped part's;
    - rows that a part refuses are refused; parameters that live on a set are put back by the part that has them; what a
      part carries is carried; a part that adapts does so by its own view of the rows;
    - what it provides, and whether its loss is a likelihood, only the composer knows;
    - a part that is a game, or is solved and not descended, is refused: its players and its solution know nothing of
      the loss around them.

    Attributes:
        composes: the hyperparameters that hold parts.
        wraps: the one of them, if any, whose data and answers are this objective's own.
        shared: fields that the parts read in common; a part that reads none of them is given its rows by the composer.
    """

    composes: ClassVar[tuple[str, ...]] = ()
    wraps: ClassVar[str] = ""
    shared: ClassVar[tuple[str, ...]] = ()

    # --- the parts ------------------------------------------------------------------------------------

    def given(self, name: str) -> object:
        """What a hyperparameter holds; a composer with a default puts it in the place of None."""
        return vars(self).get(name, self._modules.get(name))

    def parts(self) -> dict[str, Objective]:
        """The parts by name."""
        found: dict[str, Objective] = {}
        for name in self.composes:
            given = self.given(name)
            several = isinstance(given, Mapping | nn.ModuleDict)
            named: Any = given if several else {name: given}
            for own, part in named.items():
                if part is None:
                    continue
                if not isinstance(part, Objective):
                    whose = f"{type(self).__name__}'s {own}"
                    raise TypeError(f"expected {whose} to be one such as Classification(), got {part!r}")
                if several and (not str(own).isidentifier() or "__" in own or hasattr(nn.ModuleDict, own)):
                    raise ValueError(f"expected a plain word to name one of {name}, got {own!r}; choose another")
                if own in found or any(part is other for other in found.values()):
                    raise ValueError(
                        f"expected each part of {type(self).__name__} by itself, got {own!r} twice; give it a name and "
                        "an instance of its own (nets may share layers)"
                    )
                found[own] = part
        return found

    def refuse_parts(self) -> None:
        """Raises for parts that cannot be part of anything."""
        for name, part in self.parts().items():
            kind = type(part).__name__
            if part.players:
                raise ValueError(
                    f"expected {type(self).__name__}'s {name} to have one player, got {kind}, which is a game itself"
                )
            if part.solved:
                raise ValueError(
                    f"expected {type(self).__name__}'s {name} to be trained by descent, got {kind}, which is solved in "
                    "closed form and would know nothing of the loss around it"
                )
            if part.episodic:
                raise ValueError(
                    f"expected {type(self).__name__}'s {name} to learn from rows, got {kind}, which learns from "
                    "episodes"
                )
            if part.surveys:
                raise ValueError(
                    f"expected {type(self).__name__}'s {name} to know its data by batches alone, got {kind}, which "
                    "looks at all rows before the first step"
                )
            if "mass" in part.provides and "mass" not in self.provides:
                raise ValueError(
                    f"expected rows that count alike in {type(self).__name__}'s {name}, got {kind}, whose rows have a "
                    "mass of their own, which would be lost; take losses that are sums over a row, without a mass"
                )
            if part.unlabelled:
                raise ValueError(
                    f"expected a label of every row in {type(self).__name__}'s {name}, got {kind}, whose rows may lack "
                    "theirs, and -1 would be taken for a class; train it by itself"
                )
            if part.class_weight is not None and name != self.wraps:
                raise ValueError(
                    f"expected no class_weight in {type(self).__name__}'s {name}, got {part.class_weight!r}: a row has "
                    "one weight for all parts; give it to the source as the field 'weight'"
                )

    def assemble(self, specs: Mapping[str, Spec]) -> None:
        """Builds each part with its spec, as a submodule."""
        self.refuse_parts()
        parts = self.parts()
        for name, part in parts.items():
            part.build(specs[name])
        for name in self.composes:
            given = self.given(name)
            if isinstance(given, Mapping):
                setattr(self, name, nn.ModuleDict({own: parts[own] for own in given}))
            elif name in parts:
                setattr(self, name, parts[name])

    def shown(self, name: str) -> bool:
        """Whether a part is shown rows of the batch; others are given theirs by the composer."""
        return name == self.wraps or bool(set(self.shared) & set(self.parts()[name].fields))

    def view(self, name: str, rows: Mapping[str, Value]) -> dict[str, Value]:
        """A batch, or a spec, as a part sees it."""
        if name == self.wraps:
            return dict(rows)
        called = self._called()
        for part, fields in called.items():  # what says how long a row is goes with it
            fields |= {f"{o}_length": f"{n}_length" for o, n in fields.items() if self.parts()[part].holds(o) in RAGGED}
        shared = {*self.shared, *(f"{field}_length" for field in self.shared)}
        others = {outside for own in called.values() for outside in own.values()} | called[name].keys()
        seen = {field: value for field, value in rows.items() if field not in others or field in shared}
        return {**seen, **{field: rows[outside] for field, outside in called[name].items() if outside in rows}}

    def ask(self, name: str, batch: Batch) -> Output:
        """A part's losses for a batch of its own, such as `view` gives; its draws are apart from other parts'."""
        part = self.parts()[name]
        if name == self.wraps:
            return part(batch)
        with place(name):
            return part(batch)

    def _called(self) -> dict[str, dict[str, str]]:
        """By part, how its fields are called outside of it."""
        called: dict[str, dict[str, str]] = {}
        for name, part in self.parts().items():
            if name == self.wraps:
                called[name] = {field: field for field in part.fields}
            elif self.shown(name):
                called[name] = {field: field if field in self.shared else f"{name}_{field}" for field in part.fields}
            else:
                called[name] = {}
        return called

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        """What its parts refuse of the rows that they are shown."""
        for name, part in self.parts().items():
            if part.refuses and self.shown(name):
                part.refuse_rows(self.view(name, rows), training=training)

    @property
    def refuses(self) -> bool:
        return any(part.refuses for part in self.parts().values())

    # --- traits by rule -------------------------------------------------------------------------------

    @property
    def decomposable(self) -> bool:  # type: ignore[override]
        return all(part.decomposable for part in self.parts().values())

    @property
    def movable(self) -> bool:  # type: ignore[override]
        return all(part.movable for part in self.parts().values())

    @property
    def on_policy(self) -> bool:  # type: ignore[override]
        return any(part.on_policy for part in self.parts().values())

    @property
    def bootstraps(self) -> float | None:  # type: ignore[override]
        return max((part.bootstraps for part in self.parts().values() if part.bootstraps is not None), default=None)

    @property
    def trajectories(self) -> bool:  # type: ignore[override]
        return any(part.trajectories for part in self.parts().values())

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        own = [outside for called in self._called().values() for outside in called.values()]
        return tuple(dict.fromkeys([*self.shared, *own]))

    @property
    def kinds(self) -> Mapping[str, str]:  # type: ignore[override]
        parts, called = self.parts(), self._called()
        return {
            outside: parts[name].holds(own) if outside != own else parts[name].kinds[own]
            for name in parts
            for own, outside in called[name].items()
            if outside != own or own in parts[name].kinds
        }

    @property
    def columns(self) -> str:  # type: ignore[override]
        told = {part.columns for part in self._reading()}
        if len(told) > 1:
            raise ValueError(f"expected parts of {type(self).__name__} that read a table alike, got {sorted(told)}")
        return told.pop() if told else "features"

    @property
    def gaps(self) -> bool:  # type: ignore[override]
        reading = self._reading()
        return bool(reading) and all(part.gaps for part in reading)

    def _reading(self) -> list[Objective]:
        """The parts that are shown `x`; of a composer that wraps one, that one."""
        return [
            part
            for name, part in self.parts().items()
            if (name == self.wraps if self.wraps else self.shown(name) and "x" in self.shared)
        ]

    def orders(self, name: str) -> bool:
        parts = self.parts()
        return any(
            parts[p].orders(own) for p, fields in self._called().items() for own in fields if fields[own] == name
        )

    def declares(self, trait: str) -> bool:
        parts = self.parts().values()
        return all(part.declares(trait) for part in parts) if trait == "on_policy" else super().declares(trait)

    def _of_wrapped(self, trait: str) -> Any:
        return getattr(self.parts()[self.wraps] if self.wraps else Objective, trait)

    @property
    def progress(self) -> tuple[str, str]:  # type: ignore[override]
        return self._of_wrapped("progress")

    @property
    def optimizer(self) -> Any:
        return self._of_wrapped("optimizer")

    @property
    def targets(self) -> str:  # type: ignore[override]
        return self._of_wrapped("targets")

    @property
    def ordered(self) -> bool:  # type: ignore[override]
        return self._of_wrapped("ordered")

    @property
    def class_weight(self) -> Any:
        return self._of_wrapped("class_weight")

    @property
    def carried(self) -> tuple[str, ...]:  # type: ignore[override]
        names = {id(module): name for name, module in self.named_modules()}
        parts = [part for part in self.parts().values() if id(part) in names]
        return tuple(f"{names[id(part)]}.{pattern}" for part in parts for pattern in part.carried)

    @property
    def projects(self) -> bool:
        return type(self).project is not Composed.project or any(part.projects for part in self.parts().values())

    def project(self, params: Params) -> Params:
        """Each part's parameters as the part puts them back."""
        found: Params = {}
        prefixes = {id(module): f"{name}." for name, module in self.named_modules()}
        for part in self.parts().values():
            prefix = prefixes[id(part)]
            own = {name.removeprefix(prefix): p for name, p in params.items() if name.startswith(prefix)}
            found |= {prefix + name: p for name, p in part.project(own).items()} if part.projects else {}
        return found

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        return any(part.adapts for part in self.parts().values())

    def adapt(self, batch: Batch) -> Params:
        """What the parts that adapt change, each by the rows as it sees them."""
        found: Params = {}
        prefixes = {id(module): f"{name}." for name, module in self.named_modules()}
        for name, part in self.parts().items():
            if part.adapts:
                with place(name):
                    own = part.adapt(self.view(name, batch))
                found |= {prefixes[id(part)] + changed: value for changed, value in own.items()}
        return found

    # --- acting: the wrapped part acts ------------------------------------------------------------------

    def plays(self, world: Any, **settings: Any) -> Source:
        return self.parts()[self.wraps].plays(world, **settings) if self.wraps else super().plays(world, **settings)

    def credit(self, batch: Batch) -> Batch:
        return self.parts()[self.wraps].credit(batch) if self.wraps else {}

    def witness(self, batch: Batch) -> Solution:
        seen = self.parts()[self.wraps].witness(batch) if self.wraps else {}
        return {f"{self.wraps}.{name}": value for name, value in seen.items()}

    def start(self, count: int) -> dict[str, Tensor]:
        part: Any = self.parts()[self.wraps]
        memory: dict[str, Tensor] = part.start(count)
        return memory

    @property
    def acts(self) -> bool:
        own = type(self).plays is not Composed.plays
        return own or (bool(self.wraps) and self.parts()[self.wraps].acts)

    @property
    def credits(self) -> bool:
        return bool(self.wraps) and self.parts()[self.wraps].credits

    @property
    def witnesses(self) -> bool:
        return bool(self.wraps) and self.parts()[self.wraps].witnesses

    @property
    def remembers(self) -> bool:
        return bool(self.wraps) and self.parts()[self.wraps].remembers

    # --- capabilities ---------------------------------------------------------------------------------

    def _offered(self) -> dict[str, tuple[str, str, Capability]]:
        """What the parts can do, by the name under which it is offered: whose it is and what it is called there."""
        offered: dict[str, tuple[str, str, Capability]] = {}
        for name, part in self.parts().items():
            for method, mark in part.capabilities().items():
                outside = method if name == self.wraps else f"{name}_{method}"
                if outside in offered:
                    raise ValueError(f"expected parts whose answers have names of their own, got {outside!r} twice")
                seen = name == self.wraps or (self.shown(name) and "x" in self.shared)
                gives = mark.gives if seen else ""  # a prior's rows are latents
                reads = mark.reads and self.shown(name)
                offered[outside] = (
                    name,
                    method,
                    replace(mark, reads=reads, gives=gives, rows=(*mark.rows, *part.fields)),
                )
        return offered

    def capabilities(self) -> dict[str, Capability]:
        return {**{name: mark for name, (_, _, mark) in self._offered().items()}, **super().capabilities()}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name in self._get_param_names():
                raise
            if name == "sample_action" and self.wraps:
                return self.parts()[self.wraps].sample_action
            if name not in (offered := self._offered()):
                raise
        part, method, _ = offered[name]
        return getattr(self.parts()[part], method)

    # --- hyperparameters of parts in a dictionary ------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params = super().get_params(deep)
        for name in self.composes if deep else ():
            if isinstance(params[name], Mapping):
                for own, part in params[name].items():
                    params[f"{name}__{own}"] = part
                    if isinstance(part, Configured):
                        params.update({f"{name}__{own}__{k}": v for k, v in part.get_params().items()})
        return params

    def set_params(self, **params: Any) -> Self:
        for path in [path for path in params if isinstance(self.given(path.partition("__")[0]), Mapping)]:
            name, _, inner = path.partition("__")
            if inner:
                setattr(self, name, self._changed(name, inner, params.pop(path), "set_params"))
        return super().set_params(**params)

    def having(self, **params: Any) -> Self:
        twin = self
        for path in [path for path in params if isinstance(self.given(path.partition("__")[0]), Mapping)]:
            name, _, inner = path.partition("__")
            if inner:
                twin = twin.having(**{name: twin._changed(name, inner, params.pop(path), "having")})
        return super(Composed, twin).having(**params)

    def _changed(self, name: str, inner: str, value: Any, how: str) -> dict[str, Any]:
        """A dictionary of parts with another part, or a part with another setting."""
        parts: dict[str, Any] = dict(self.given(name))  # type: ignore[call-overload]
        own, _, setting = inner.partition("__")
        if own not in parts:
            raise closest(own, parts, f"one of {type(self).__name__}'s {name}")
        parts[own] = getattr(parts[own], how)(**{setting: value}) if setting else value
        return parts
