# SPDX-License-Identifier: Apache-2.0
"""Sees every write to a tensor, by whatever route, and costs nothing where there is none.

Each operator whose schema says that it writes an argument gets a kernel at a dispatch key that no
tensor has; a thread that includes the key while it watches runs these kernels first. All other
operators fall through. Tried with torch 2.13; where the key cannot be used, a TorchDispatchMode
does the same, and makes every operator slower.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["all_operators_are_known", "watching"]

# (operator, tensors that it writes, arguments, keywords) -> what the operator returns
Seen = Callable[[Any, list[torch.Tensor], tuple[Any, ...], dict[str, Any]], Any]

_KEY = "TESTING_ONLY_GenericMode"

# They change what a tensor object shows, and no element.
_METADATA_ONLY = {
    *("as_strided_", "detach_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_"),
    *("swapdims_", "set_", "resize_", "resize_as_", "requires_grad_", "rename_"),
    *("_resize_output_", "retain_grad", "_coalesced_"),
}


class _Thread(threading.local):
    seen: Seen | None = None


_thread = _Thread()
_lock = threading.Lock()
_libraries: dict[str, torch.library.Library] = {}
_watched: set[tuple[str, str]] = set()
_known: set[str] = set()  # names of operators, as the dispatcher has them


def _written_places(schema: Any) -> list[tuple[int, str]]:
    return [
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _written(places: list[tuple[int, str]], args: Any, kwargs: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for place, name in places:
        value = args[place] if place < len(args) else kwargs.get(name)
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors.extend(item for item in value if isinstance(item, torch.Tensor))
    return tensors


def _kernel(op: Any, places: list[tuple[int, str]], keys: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            seen = _thread.seen
            tensors = _written(places, args, kwargs) if seen is not None else []
            if seen is None or not tensors:
                return op(*args, **kwargs)
            return seen(op, tensors, args, kwargs)

    return run


def all_operators_are_known() -> bool:
    """Whether no operator was registered since this module last looked."""
    return _known.issuperset(torch._C._dispatch_get_all_op_names())


def _add_kernels(keys: Any) -> None:
    """Adds a kernel for each operator that has none: any may be registered at any time."""
    if "_" not in _libraries:
        _libraries["_"] = torch.library.Library("_", "IMPL")
        _libraries["_"].fallback(torch.library.fallthrough_kernel, _KEY)
    if all_operators_are_known():
        return
    _known.update(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        if not schema.is_mutable or (schema.name, schema.overload_name) in _watched:
            continue
        _watched.add((schema.name, schema.overload_name))
        space, _, name = schema.name.partition("::")
        places = _written_places(schema)
        if name in _METADATA_ONLY or not places or space == "prim":
            continue
        if space not in _libraries:
            _libraries[space] = torch.library.Library(space, "IMPL")
        packet = getattr(getattr(torch.ops, space), name, None)
        op = getattr(packet, schema.overload_name or "default", None)
        if op is not None:
            _libraries[space].impl(op, _kernel(op, places, keys), _KEY)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        seen = _thread.seen
        name = schema.name.partition("::")[2]
        if seen is not None and schema.is_mutable and name not in _METADATA_ONLY:
            tensors = _written(_written_places(schema), args, kwargs)
            if tensors:
                return seen(func, tensors, args, kwargs)
        return func(*args, **kwargs)


def _guard() -> contextlib.AbstractContextManager[Any] | None:
    """What makes this thread run the kernels; None where a write would not be seen."""
    try:
        key: Any = torch._C._parse_dispatch_key(_KEY)
        keys = torch._C.DispatchKeySet(key)
        with _lock:
            _add_kernels(keys)
        before, told = _thread.seen, []

        def tell(op: Any, tensors: Any, args: Any, kwargs: Any) -> Any:
            told.append(op)
            return op(*args, **kwargs)

        _thread.seen = tell
        try:
            with torch._C._IncludeDispatchKeyGuard(key):
                torch.empty(1, device="meta").zero_()
        finally:
            _thread.seen = before
        return torch._C._IncludeDispatchKeyGuard(key) if told else None
    except (AttributeError, RuntimeError, TypeError):
        return None


@contextlib.contextmanager
def watching(seen: Seen, *, by_mode: bool = False) -> Iterator[None]:
    """Calls `seen` instead of each operator of this thread that writes tensors."""
    guard = None if by_mode else _guard()
    if guard is None:  # a mode sees every operator
        _known.update(torch._C._dispatch_get_all_op_names())
    before = _thread.seen
    _thread.seen = seen
    try:
        with guard if guard is not None else _Mode():
            yield
    finally:
        _thread.seen = before
