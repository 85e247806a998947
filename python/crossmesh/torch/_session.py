# SPDX-License-Identifier: Apache-2.0
"""One run of a loader on placeholders: every write to a parameter, in order."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from crossmesh import _core
from crossmesh._error import Error
from crossmesh.torch import _model, _placeholder, _watch
from crossmesh.torch._geometry import wire_dtype
from crossmesh.torch._placeholder import OpaqueTensor, RecordingTensor
from crossmesh.torch._refusal import SUPPORTED, VALUES, Refused

__all__ = ["LoadSession", "Outcome"]


class Outcome(enum.Enum):
    """What came of one run of a loader."""

    recorded = enum.auto()
    new_operators = enum.auto()  # it registered operators, which were not watched
    replaced = enum.auto()  # it replaced parameters that were not suspected


class _Storage:
    """A memory of the model: which one, and whether its bytes are the model's own."""

    __slots__ = ("bytes", "index", "kept")

    def __init__(self, index: int, own: torch.UntypedStorage | None) -> None:
        self.index = index
        self.kept = own
        self.bytes: torch.UntypedStorage | None = None


class LoadSession(_placeholder.Recording):
    """The recording of a module's load. `run` leaves the module as it was, whatever happens."""

    def __init__(
        self, module: torch.nn.Module, tensors: Sequence[tuple[str, tuple[int, ...], torch.dtype]]
    ) -> None:
        super().__init__()
        self.record = _core.BakeRecord()
        self.tensors = tensors
        self.live: dict[int, None] = {}
        self.refusals: dict[int, str] = {}
        self._current = -1
        self._given = 0
        self._storages: dict[int, _Storage] = {}
        self._indices: dict[int, int] = {}
        self._alive: list[Any] = []
        self._geometries: dict[Any, _core.TargetGeometry] = {}
        self._feeders: frozenset[int] = frozenset()
        self._escaped: frozenset[int] = frozenset()
        self._values_escaped = False
        self._why = ""
        self._replacements: dict[str, object] = {}
        self._suspects: frozenset[str] = frozenset()
        self._thread = threading.get_ident()
        self.replaced: frozenset[str] = frozenset()  # parameters, when the run was over
        self.names = [name for name, _, _ in tensors]
        for name, shape, dtype in tensors:
            wire = wire_dtype(dtype)
            if wire is None:
                raise Error(
                    "unsupported",
                    "bake: a dtype has no wire form",
                    {"tensor": name, "dtype": str(dtype)},
                )
            self.record.add_tensor(name, wire, list(shape))
        self.model = _model.MetaModel(module, self._stamp)
        self._region_of: dict[str, tuple[Any, ...]] = {}
        for name, original, stand_in in self.model.parameters:
            self._add(name, original, stand_in, is_buffer=False)
        for name, buffer in self.model.buffers:
            if wire_dtype(buffer.dtype) is not None and _is_strided(buffer):
                self._add(name, buffer, buffer, is_buffer=True)

    def _add(
        self, name: str, original: torch.Tensor, stand_in: torch.Tensor, *, is_buffer: bool
    ) -> None:
        wire = wire_dtype(original.dtype)
        if wire is None or not _is_strided(original):
            raise Error(
                "unsupported",
                "bake: a parameter has no wire form",
                {"parameter": name, "dtype": str(original.dtype), "layout": str(original.layout)},
            )
        own = original.untyped_storage()
        index = self._indices.setdefault(own._cdata, len(self._indices))
        for storage in (own, stand_in.untyped_storage()):
            if storage._cdata not in self._storages:
                is_own = storage._cdata == own._cdata and storage.device.type != "meta"
                self._storages[storage._cdata] = _Storage(index, storage if is_own else None)
                self._alive.append(storage)
        shape, strides = tuple(original.shape), original.stride()
        self._region_of[name] = (index, wire, shape, strides, original.storage_offset())
        self.record.add_parameter(
            name, wire, shape, strides, index, int(original.storage_offset()), is_buffer
        )

    def region_of(self, parameter: str) -> tuple[Any, ...]:
        """Which memory, the wire dtype, shape, strides and offset, as they were baked."""
        return self._region_of[parameter]

    # -- Running ---------------------------------------------------------------------------------

    def run(
        self,
        load: Callable[[Iterable[tuple[str, torch.Tensor]]], object],
        *,
        suspects: frozenset[str] = frozenset(),
        by_mode: bool = False,
    ) -> Outcome:
        """Calls the loader once.

        `suspects` are parameters that the loader replaces: after each tensor it is seen whether it
        did. Others may have been replaced in the end: then a new session must run the loader again.
        """
        self._suspects = suspects
        try:
            self.model.enter()
            with _watch.watching(self._on_write, by_mode=by_mode):
                load(self._placeholders())
            self._current = -1
            replaced = list(self.model.replaced())
        finally:
            self._restore()
        if self._given < len(self.tensors):
            raise Error(
                "unsupported",
                "bake: the loader stopped before it had seen all tensors",
                {
                    "tensors": len(self.tensors),
                    "seen": self._given,
                    "next": self.tensors[self._given][0],
                },
            )
        if not by_mode and not _watch.all_operators_are_known():
            return Outcome.new_operators
        self.replaced = frozenset(name for name, _, _ in replaced)
        if not self.replaced <= suspects:
            return Outcome.replaced
        self._write_replaced(replaced, self._escaped)
        for tensor, reason in self.refusals.items():
            self.record.refuse(tensor, reason)
        return Outcome.recorded

    def _placeholders(self) -> Iterator[tuple[str, torch.Tensor]]:
        for index, (name, shape, dtype) in enumerate(self.tensors):
            self._current = index
            self._given = index + 1
            yield name, self.placed(index, shape, dtype)
            if self._suspects:
                self._write_replaced(self.model.replaced(self._suspects), frozenset((index,)))
        self._current = -1

    def _restore(self) -> None:
        self.model.restore()
        for storage in self._storages.values():
            if storage.kept is not None and storage.bytes is not None:
                storage.kept.copy_(storage.bytes)
                storage.bytes = None

    def _stamp(self, parameter: str, loader: Callable[..., Any]) -> Callable[..., Any]:
        def caught(error: Refused) -> bool:
            # What it would have written is not known: any of its parameter.
            tensor = self._refused_tensor(error)
            self._write_whole(parameter, frozenset((tensor,)), _reason(error))
            return True

        return _model.stamped(loader, caught)

    # -- What is seen ----------------------------------------------------------------------------

    def copied(self, target: torch.Tensor, source: RecordingTensor) -> torch.Tensor:
        node, tensor = source._node, source._tensor
        if threading.get_ident() != self._thread:
            raise Error(
                "unsupported",
                "bake: the loader copies in another thread, whose writes are not seen",
                {"tensor": self.names[tensor]},
                "load in the thread that bakes",
            )
        self.live[tensor] = None
        storage = self._storages.get(target.untyped_storage()._cdata)
        shape = target.shape
        if shape != node.shape:
            with torch._C.DisableTorchFunctionSubclass():  # torch's own refusal, where it refuses
                torch.empty(shape, device="meta").copy_(torch.empty(node.shape, device="meta"))
        wire = wire_dtype(target.dtype)
        if storage is None or wire is None:
            self._escape(frozenset((tensor,)), target)
            self._refuse(tensor, "copy_: into a tensor that is no parameter")
            return target
        key = (target.dtype, shape, target.stride())
        geometry = self._geometries.get(key)
        if geometry is None:
            geometry = self._geometries[key] = _core.TargetGeometry(wire, *key[1:])
        self.record.copy(
            self._current, tensor, node.chain, storage.index, geometry, int(target.storage_offset())
        )
        return target

    def refused(self, error: Refused, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._why = _reason(error)
        try:
            return self.go_on(func, args, kwargs)
        finally:
            self._why = ""

    def go_on(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Does to meta tensors what the loader does to values that are not known."""
        tensors: set[int] = set()
        why = self._why or f"{_placeholder.name_of(func)}: no chain records this call"

        def plain(value: Any) -> Any:
            if isinstance(value, RecordingTensor):
                tensors.add(value._tensor)
                return _placeholder.opaque_of(value)
            if isinstance(value, OpaqueTensor):
                tensors.update(value._tensors)
                return value.as_subclass(torch.Tensor)
            if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
                return type(value)(plain(item) for item in value)
            if isinstance(value, slice):
                return slice(plain(value.start), plain(value.stop), plain(value.step))
            return value

        with torch._C.DisableTorchFunctionSubclass():
            plain_args = plain(tuple(args))
            plain_kwargs = {key: plain(value) for key, value in kwargs.items()}
            names = frozenset(tensors)
            for tensor in sorted(names):
                self._refuse(tensor, why)
                self.live[tensor] = None
            before, self._feeders = self._feeders, names
            try:
                result = self._done(func, plain_args, plain_kwargs, why, names)
            finally:
                self._feeders = before
            if args and result is plain_args[0] and not isinstance(args[0], torch.nn.Parameter):
                return args[0]  # in place
            return self._opaque(result, names)

    def _done(
        self, func: Callable[..., Any], args: Any, kwargs: Any, why: str, names: frozenset[int]
    ) -> Any:
        name = _placeholder.name_of(func)
        if name in ("cpu", "cuda", "pin_memory"):
            return args[0]
        if name == "to":
            args, kwargs = _without_device(args, kwargs)
            if len(args) == 1 and not kwargs:
                return args[0]
        try:
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            moved = [_to_meta(value, self._storages) for value in args]
            if any(a is not b for a, b in zip(moved, args, strict=True)):
                try:
                    return func(*moved, **kwargs)
                except (NotImplementedError, RuntimeError, TypeError):
                    pass
            if not _is_for_want_of_values(error):
                raise
            raise self._refusal(min(names), name) from error

    def _opaque(self, value: Any, names: frozenset[int]) -> Any:
        if isinstance(value, torch.Tensor) and type(value) is not OpaqueTensor:
            made = torch.Tensor._make_subclass(OpaqueTensor, value)
            made._recording = self
            made._tensors = names
            return made
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            items = [self._opaque(item, names) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        return value

    def _on_write(
        self, op: Any, tensors: list[torch.Tensor], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        places = []
        for tensor in tensors:
            storage = self._storages.get(_storage_of(tensor))
            if storage is None:
                if self._feeders:
                    self._escape(self._feeders, tensor)
                continue
            if storage.kept is not None and storage.bytes is None:
                storage.bytes = storage.kept.clone()
            region = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
            places.append((storage, tensor, region))
        value = _constant(op, args, kwargs) if places and not self._feeders else None
        if value is not None and self._values_escaped and value.numel() > 1:
            value = None
        result = op(*args, **kwargs)
        for storage, tensor, region in places:
            self._written(op, storage.index, tensor, region, value)
        return result

    def _written(
        self, op: Any, storage: int, tensor: torch.Tensor, region: Any, value: torch.Tensor | None
    ) -> None:
        wire = wire_dtype(tensor.dtype)
        if wire is None:
            raise Error("unsupported", "bake: a dtype has no wire form", {"dtype": tensor.dtype})
        shape, strides, offset = region
        if 0 in shape:
            return
        if value is not None:
            bits = _bits_of(value, tensor.dtype)
            if bits is not None:
                self.record.fill(self._current, bits, storage, wire, shape, strides, offset)
                return
        name = op._schema.name.partition("::")[2]
        why = self._why or f"{name} writes values that are not the tensor's"
        feeders = sorted(self._feeders | self._escaped)
        self.record.write(self._current, feeders, why, storage, wire, shape, strides, offset)

    def _write_replaced(
        self, replaced: Iterable[tuple[str, str, object]], feeders: frozenset[int]
    ) -> None:
        for name, what, by in replaced:
            if self._replacements.get(name, self) is not by:
                self._replacements[name] = by
                self._write_whole(name, feeders, what)

    def _write_whole(self, parameter: str, feeders: frozenset[int], why: str) -> None:
        index, wire, shape, strides, offset = self._region_of[parameter]
        for tensor in feeders:
            self._refuse(tensor, why)
        self.record.write(self._current, sorted(feeders), why, index, wire, shape, strides, offset)

    def parameter_at(self, event: _core.BakeEvent) -> tuple[str, int]:
        """The first parameter that holds where an event begins, and the offset of its storage."""
        size = _core.bit_size(event.dtype)
        for name, (index, wire, shape, strides, offset) in self._region_of.items():
            if index != event.storage:
                continue
            last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            begin, end = offset * _core.bit_size(wire), (last + 1) * _core.bit_size(wire)
            if begin <= event.offset * size < max(end, begin + 1):
                return name, begin // size
        return "", 0

    def _escape(self, tensors: frozenset[int], into: torch.Tensor) -> None:
        """Values lie in memory of the loader's own, and may come from there into any parameter."""
        self._escaped |= tensors
        if into.device.type != "meta":
            self._values_escaped = True

    def _refuse(self, tensor: int, why: str) -> None:
        self.refusals.setdefault(tensor, why)

    def _refusal(self, tensor: int, call: str) -> Refused:
        return Refused(
            "unsupported",
            f"{call}: {VALUES}",
            {"tensor": repr(self.names[tensor]), "supported": SUPPORTED},
        )

    def _refused_tensor(self, error: Refused) -> int:
        name = error.facts.get("tensor", "")
        for tensor in range(len(self.names) - 1, -1, -1):
            if repr(self.names[tensor]) == name:
                return tensor
        return self._current


def _reason(error: Error) -> str:
    chain = error.facts.get("chain", "[]")
    return error.summary if chain == "[]" else f"{error.summary}, after {chain}"


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _storage_of(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


def _without_device(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    def is_device(value: Any) -> bool:
        return isinstance(value, (torch.device, str)) or type(value) is int

    kept = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking", "copy")}
    rest = []
    for value in args[1:]:
        if isinstance(value, torch.Tensor):
            rest.append(value.dtype)
        elif not is_device(value) and not isinstance(value, bool):
            rest.append(value)
    return (args[0], *rest), kept


def _to_meta(value: Any, storages: dict[int, _Storage]) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type != "meta":
        return value.to("meta") if _storage_of(value) not in storages else value
    return value


def _is_for_want_of_values(error: Exception) -> bool:
    text = str(error)
    return "meta" in text.lower() or isinstance(error, NotImplementedError)


def _constant(op: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The value that an operator writes everywhere; nothing where it is not known."""
    name = op._schema.name
    if name == "aten::zero_":
        return torch.zeros(())
    if name not in ("aten::fill_", "aten::copy_"):
        return None
    value = args[1] if len(args) > 1 else kwargs.get("value", kwargs.get("src"))
    if not isinstance(value, torch.Tensor):
        # Not the default dtype, which would round it.
        dtype = torch.float64 if isinstance(value, float) else None
        return None if value is None else torch.tensor(value, dtype=dtype)
    if value.device.type == "meta" or value.numel() == 0:
        return None
    # By bits: zeros differ by their sign.
    bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    bits = bits.reshape(value.numel(), -1)
    return value if bool((bits == bits[0]).all()) else None


def _bits_of(value: torch.Tensor, dtype: torch.dtype) -> int | None:
    element = value.reshape(-1)[:1].detach().cpu().to(dtype)
    return int.from_bytes(bytes(element.view(torch.uint8).tolist()), "little")
