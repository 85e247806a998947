# SPDX-License-Identifier: Apache-2.0
"""A module whose parameters lie on the meta device for a while, and then are as before."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Set
from typing import Any

import torch

from crossmesh._error import Error
from crossmesh.torch._refusal import Refused

__all__ = ["MetaModel"]

# Where a parameter keeps the function that loads it: the attribute, or what a property reads.
_LOADERS = ("weight_loader", "_weight_loader")


class MetaModel:
    """Stands meta parameters in for a module's own, storage by storage.

    Parameters that share memory share it on meta too. Buffers stay, since loaders read them.
    `restore` puts everything back: the same objects, and the modules' attributes as they were.
    """

    def __init__(
        self, module: torch.nn.Module, stamp: Callable[[str, Callable[..., Any]], Any]
    ) -> None:
        self._stamp = stamp
        self._saved = [
            (m, dict(m.__dict__), dict(m._parameters), dict(m._buffers)) for m in module.modules()
        ]
        self._meta_of: dict[int, torch.Tensor] = {}
        self._name_of: dict[int, str] = {}  # the first, of parameters that are one
        self._storages: dict[int, torch.UntypedStorage] = {}
        # (name, original, stand-in); a buffer stands in for itself
        self.parameters: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self.buffers: list[tuple[str, torch.Tensor]] = []
        for name, buffer in module.named_buffers(remove_duplicate=False):
            self.buffers.append((name, buffer))
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if torch.nn.parameter.is_lazy(parameter):
                raise Error(
                    "unsupported",
                    "bake: a parameter has no shape yet",
                    {"parameter": name},
                    "give it its shape before the bake",
                )
            self.parameters.append((name, parameter, self._stand_in(name, parameter)))
            self._name_of.setdefault(id(parameter), name)

    def enter(self) -> None:
        """Puts the stand-ins in place."""
        for module, _, parameters, _ in self._saved:
            for name, parameter in parameters.items():
                if parameter is not None:
                    stand_in: Any = self._meta_of[id(parameter)]
                    module._parameters[name] = stand_in

    def restore(self) -> None:
        """Puts the module's own back. May be called again."""
        for module, attributes, parameters, buffers in self._saved:
            _put_back(attributes["_parameters"], parameters)
            _put_back(attributes["_buffers"], buffers)
            _put_back(module.__dict__, attributes)

    def replaced(self, among: Set[str] | None = None) -> Iterator[tuple[str, str, object]]:
        """Yields parameters that are not what was put in place: what happened, and by what.

        Looks at those named in `among`, or at all.
        """
        for module, _, parameters, _ in self._saved:
            for name, parameter in parameters.items():
                if parameter is None:
                    continue
                full_name = self._name_of[id(parameter)]
                if among is not None and full_name not in among:
                    continue
                now = module._parameters.get(name)
                if now is not self._meta_of[id(parameter)]:
                    yield full_name, "it was replaced by another parameter", now
        for name, original, stand_in in self.parameters:
            if among is not None and name not in among:
                continue
            known = self._storages[original.untyped_storage()._cdata]
            storage = stand_in.untyped_storage()
            if (
                storage._cdata != known._cdata
                or stand_in.shape != original.shape
                or stand_in.stride() != original.stride()
                or stand_in.storage_offset() != original.storage_offset()
                or stand_in.dtype != original.dtype
            ):
                yield name, "its data was replaced", storage

    def _stand_in(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        made = self._meta_of.get(id(parameter))
        if made is not None:
            return made
        storage = parameter.untyped_storage()
        meta = self._storages.get(storage._cdata)
        if meta is None:
            meta = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
            self._storages[storage._cdata] = meta
        data = torch.empty(0, dtype=parameter.dtype, device="meta")
        data.set_(meta, parameter.storage_offset(), parameter.size(), parameter.stride())
        made = torch.Tensor._make_subclass(type(parameter), data, parameter.requires_grad)
        for key, value in parameter.__dict__.items():
            if isinstance(value, types.MethodType) and value.__self__ is parameter:
                value = types.MethodType(value.__func__, made)
            if key in _LOADERS and callable(value):
                value = self._stamp(name, value)
            made.__dict__[key] = value
        self._meta_of[id(parameter)] = made
        return made


def _put_back(into: dict[str, Any], saved: dict[str, Any]) -> None:
    if len(into) == len(saved) and all(
        into.get(key, into) is value for key, value in saved.items()
    ):
        return
    into.clear()
    into.update(saved)


def stamped(loader: Callable[..., Any], caught: Callable[[Refused], object]) -> Callable[..., Any]:
    """Returns a function that stands in for a loader, and goes on where it is refused."""

    @functools.wraps(loader)
    def load(*args: Any, **kwargs: Any) -> Any:
        try:
            return loader(*args, **kwargs)
        except Refused as error:
            return caught(error)

    if hasattr(loader, "__self__"):
        load.__self__ = loader.__self__  # type: ignore[attr-defined]
    return load
