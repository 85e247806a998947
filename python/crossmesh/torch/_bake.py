# SPDX-License-Identifier: Apache-2.0
"""The bake of one rank, and of all ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from crossmesh import _core
from crossmesh._error import Error
from crossmesh.torch import _geometry, _session

__all__ = ["Bake", "Copied", "Filled", "bake", "merge"]

Load = Callable[[Iterable[tuple[str, torch.Tensor]]], object]

# Runs of a loader: it may register operators, then replace parameters, each once.
_RUNS_MAX = 4


class Copied(NamedTuple):
    """One copy that the loader made: what of which tensor, and where to.

    Offset, shape and strides count elements of the parameter's storage, from where the parameter
    begins; `dtype` is that of the chain's end.
    """

    tensor: str
    chain: list[Any]
    parameter: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Filled(NamedTuple):
    """A region of a parameter that holds a constant; its value as bits of one element."""

    parameter: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    value_bits: int
    reason: str


class Bake:
    """What one rank's loader does with each tensor.

    Attributes:
        rank: Of the engine, as it was given.
        live: Names that the loader copied or used, in order.
        baked: Names of which pieces say all.
        never_copied: Names that the loader puts nowhere on this rank.
        overwritten: Names that later copies hide whole, with the parameter.
        opaque: Names that go to the loader, with the reason.
        fills: Regions that hold a constant.
        kept: Regions that nothing feeds, with the reason.
        derived: Regions that the loader computes with no tensor in hand, with the reason.
        needs_loader: Whether the loader must run even where no tensor is opaque.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        load: Load,
        session: _session.LoadSession,
        result: _core.BakeResult,
        rank: int,
    ) -> None:
        self.rank = rank
        self._module = module
        self._load = load
        self._session = session
        self._tensors = {name: (shape, dtype) for name, shape, dtype in session.tensors}
        self._layout = result.layout
        self._tensor_names: list[str] = result.tensor_names
        self._parameter_names: list[str] = result.parameter_names
        self.needs_loader: bool = result.needs_loader
        self.live = [session.names[tensor] for tensor in session.live]
        self.baked: list[str] = []
        self.never_copied: list[str] = []
        self.overwritten: dict[str, str] = {}
        self.opaque: dict[str, str] = {}
        for index, (name, fate) in enumerate(zip(session.names, result.fates, strict=True)):
            if fate == "baked":
                self.baked.append(name)
            elif fate == "never_copied":
                self.never_copied.append(name)
            elif fate == "overwritten":
                self.overwritten[name] = result.reason_of(index)
            else:
                self.opaque[name] = result.reason_of(index)
        regions: dict[str, list[Filled]] = {"fill": [], "kept": [], "derived": []}
        for parameter, kind, (shape, strides, offset), bits, reason in result.reserves:
            regions[kind].append(Filled(parameter, offset, shape, strides, bits, reason))
        self.fills = regions["fill"]
        self.kept = regions["kept"]
        self.derived = regions["derived"]

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Tensors to which the loader did what no chain records, with what it was."""
        session = self._session
        return [(session.names[t], reason) for t, reason in sorted(session.refusals.items())]

    @property
    def scatters(self) -> list[Copied]:
        """The recorded copies, in order, those of opaque tensors among them."""
        session = self._session
        copies = []
        for event in session.record.events:
            if event.kind != "copy":
                continue
            parameter, begin = session.parameter_at(event)
            dtype = session.node(event.chain).dtype
            copies.append(
                Copied(
                    session.names[event.source],
                    json.loads(session.book.calls(event.chain)),
                    parameter,
                    event.offset - begin,
                    event.shape,
                    event.strides,
                    dtype,
                )
            )
        return copies

    def _bytes_of(self, names: Iterable[str]) -> int:
        return sum(
            math.prod(shape) * dtype.itemsize
            for shape, dtype in (self._tensors[name] for name in names)
        )

    @property
    def direct_bytes_share(self) -> float:
        """Bytes of tensors that pieces move, of the bytes of all that the loader takes."""
        direct = self._bytes_of(self.baked) + self._bytes_of(self.overwritten)
        every = direct + self._bytes_of(self.opaque)
        return direct / every if every else 1.0

    def layout(self) -> _core.Layout:
        """Returns this rank's part of a target layout, as a layout of one rank."""
        return self._layout

    def explain(self) -> str:
        """Returns a stable text: counts, then what is opaque, kept, derived and filled, and why."""
        counts = (
            f"bake of rank {self.rank}: {len(self._tensors)} tensors, {len(self.baked)} baked, "
            f"{len(self.opaque)} opaque, {len(self.overwritten)} overwritten, "
            f"{len(self.never_copied)} never copied; "
            f"{self.direct_bytes_share:.1%} of bytes are direct"
        )
        lines = [counts]
        lines += [f"  opaque  {name}: {why}" for name, why in self.opaque.items()]
        lines += [f"  overwritten  {name}: {why}" for name, why in self.overwritten.items()]
        lines += [f"  never copied  {name}" for name in self.never_copied]
        for word, regions in (("fill", self.fills), ("kept", self.kept), ("derived", self.derived)):
            for r in regions:
                region = f"{list(r.shape)}:{list(r.strides)}+{r.offset}"
                lines.append(f"  {word}  {r.parameter} {region}: {r.reason}")
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return f"<Bake of rank {self.rank}: {len(self.baked)} baked, {len(self.opaque)} opaque>"

    # -- Doing it --------------------------------------------------------------------------------

    def apply(self, get_tensor: Callable[[str], torch.Tensor]) -> None:
        """Puts checkpoint tensors in place: pieces by copies, fills, the rest by the loader.

        `get_tensor(name)` returns a tensor in CPU memory, of the announced shape and dtype.

        Raises:
            crossmesh.Error: invalid_argument: a tensor is not as it was announced; mismatch: a
                parameter is not as it was baked. Nothing is written then.
        """
        live: dict[str, torch.Tensor] = dict(self._module.named_parameters(remove_duplicate=False))
        live.update(self._module.named_buffers(remove_duplicate=False))
        for name in self._parameter_names:
            if name not in live:
                raise Error(
                    "mismatch",
                    "apply: a parameter is no longer there",
                    {"parameter": name},
                    "bake the module as it is now",
                )
        targets = [live[name] for name in self._parameter_names]
        self._check_regions(targets)
        for name, target in zip(self._parameter_names, targets, strict=True):
            if target.device.type != "cpu":
                raise Error(
                    "unsupported",
                    "apply: a parameter is not in CPU memory",
                    {"parameter": name, "device": str(target.device)},
                )
        putter = _core.Putter(self._layout, 0, [target.data_ptr() for target in targets])
        baked = set(self.baked)
        for index, name in enumerate(self._tensor_names):
            if name in baked:
                tensor = self._checked(name, get_tensor(name))
                wire = _geometry.wire_dtype(tensor.dtype)
                assert wire is not None
                putter.put(index, wire, tensor.data_ptr())
        putter.put_fills()
        if self.opaque or self.needs_loader:
            self._load(self._opaque_tensors(get_tensor))

    def _check_regions(self, targets: list[torch.Tensor]) -> None:
        """Each where its pieces will be written: of the same form, and sharing the same memory."""
        base_of_storage: dict[int, int] = {}
        for name, target in zip(self._parameter_names, targets, strict=True):
            storage, wire, shape, strides, offset = self._session.region_of(name)
            form = (_geometry.wire_dtype(target.dtype), tuple(target.shape), target.stride())
            base = target.data_ptr() - offset * target.element_size()
            shares = target.numel() == 0 or base_of_storage.setdefault(storage, base) == base
            if form != (wire, tuple(shape), tuple(strides)) or not shares:
                raise Error(
                    "mismatch",
                    "apply: a parameter is not as it was baked",
                    {
                        "parameter": name,
                        "baked": f"{wire} {list(shape)}:{list(strides)}",
                        "now": f"{form[0]} {list(form[1])}:{list(form[2])}"
                        + ("" if shares else ", in memory of its own"),
                    },
                    "bake the module as it is now",
                )

    def _opaque_tensors(
        self, get_tensor: Callable[[str], torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self._tensors:
            if name in self.opaque:
                yield name, self._checked(name, get_tensor(name))

    def _checked(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        shape, dtype = self._tensors[name]
        if (
            tuple(tensor.shape) != tuple(shape)
            or tensor.dtype != dtype
            or tensor.device.type != "cpu"
        ):
            raise Error(
                "invalid_argument",
                "apply: a tensor is not as it was announced",
                {
                    "tensor": name,
                    "announced": f"{dtype} {list(shape)}",
                    "given": f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}",
                },
            )
        return tensor.contiguous()


def _announced(tensors: Any) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Names, shapes and torch's dtypes; checked before anything is changed."""
    if isinstance(getattr(tensors, "tensors", None), Sequence):
        tensors = [(t.name, t.shape, t.dtype) for t in tensors.tensors]
    announced: list[tuple[str, tuple[int, ...], torch.dtype]] = []
    seen: set[str] = set()
    for name, shape, dtype in tensors:
        known = dtype
        if isinstance(known, str):
            known = _core.dtype_from_name(known)
        if isinstance(known, _core.DType):
            known = _geometry.torch_dtype(known)
        if not isinstance(known, torch.dtype):
            raise Error(
                "unsupported", "bake: torch has no such dtype", {"tensor": name, "dtype": dtype}
            )
        if name in seen:
            raise Error("invalid_argument", "bake: a tensor is named twice", {"tensor": name})
        seen.add(name)
        announced.append((name, tuple(shape), known))
    return announced


def bake(
    module: torch.nn.Module,
    tensors: Iterable[tuple[str, Sequence[int], Any]] | Any,
    load: Load | None = None,
    *,
    rank: int = 0,
) -> Bake:
    """Records what `load` (by default `module.load_weights`) does with `tensors`, run once.

    `tensors` is a Catalog, or (name, shape, dtype) in the order in which the loader shall see them;
    a dtype is torch's, or a name. The module is left exactly as it was, also after an exception.

    Raises:
        crossmesh.Error: unsupported: the loader needs values outside of a parameter's own loader
            (then also a NotImplementedError), stops early, or a dtype has no wire form. What the
            loader raises passes through.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(4, 8, bias=False)
        >>> def load(weights):
        ...     for name, tensor in weights:
        ...         layer.weight.data[4:].copy_(tensor.narrow(0, 2, 4))
        >>> baked = crossmesh.torch.bake(layer, [("w", (6, 4), torch.float32)], load)
        >>> baked.baked, [region.shape for region in baked.kept]
        (['w'], [(16,)])
    """
    announced = _announced(tensors)
    run: Load = load if load is not None else module.load_weights  # type: ignore[assignment]
    session = _recorded(module, announced, run)
    result = _core.lay_out_record(session.record, session.book)
    return Bake(module, run, session, result, rank)


def _recorded(
    module: torch.nn.Module,
    announced: list[tuple[str, tuple[int, ...], torch.dtype]],
    run: Load,
) -> _session.LoadSession:
    """Runs the loader until it was seen whole: mostly once."""
    suspects: frozenset[str] = frozenset()
    for _ in range(_RUNS_MAX):
        session = _session.LoadSession(module, announced)
        outcome = session.run(run, suspects=suspects)
        if outcome is _session.Outcome.recorded:
            return session
        # An operator that was new is known the next time.
        if outcome is _session.Outcome.replaced:
            suspects |= session.replaced
    raise Error(
        "unsupported",
        "bake: the loader does something else each time that it runs",
        {
            "runs": _RUNS_MAX,
            "the last": "it registered operators"
            if outcome is _session.Outcome.new_operators
            else f"it replaced {', '.join(sorted(session.replaced))}",
        },
    )


def merge(bakes: Sequence[Bake]) -> _core.Layout:
    """Returns the layout of all ranks, from the bake of each in order of rank.

    Equal geometry is told once, whichever ranks it is on.

    Raises:
        crossmesh.Error: mismatch: ranks tell a tensor or a parameter differently.
    """
    return _core.merge_layouts([bake.layout() for bake in bakes])
