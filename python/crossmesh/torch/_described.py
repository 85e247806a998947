# SPDX-License-Identifier: Apache-2.0
"""What a placeholder answers about itself, without a call of torch's."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from crossmesh.torch._geometry import Node, meta_of
from crossmesh.torch._refusal import VALUES, refuse

__all__ = ["DescribedTensor"]

_cpu = torch.device("cpu")


class DescribedTensor(torch.Tensor):
    """A tensor without values: its geometry, and the refusal of all that needs values."""

    _recording: Any
    _tensor: int
    _node: Node

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self._node.shape

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self._node.dtype

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self._node.shape)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _cpu

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return False

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return False

    @property
    def is_quantized(self) -> bool:  # type: ignore[override]
        return False

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        return torch.strided

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return False

    @property
    def grad(self) -> None:  # type: ignore[override]
        return None

    @property
    def itemsize(self) -> int:  # type: ignore[override]
        return int(self._node.dtype.itemsize)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return int(self._node.numel * self._node.dtype.itemsize)

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        return True

    @property
    def real(self) -> Any:  # type: ignore[override]
        if self._node.dtype.is_complex:
            refuse(self, "real", "no chain records this call")
        return self

    @property
    def data(self) -> Any:  # type: ignore[override]
        return self

    def detach(self) -> Any:
        return self

    def size(self, dim: int | None = None) -> Any:
        if dim is None:
            return self._node.shape
        return self._node.shape[self._wrapped(dim)]

    def stride(self, dim: int | None = None) -> Any:
        if dim is None:
            return self._node.strides
        return self._node.strides[self._wrapped(dim)]

    def _wrapped(self, dim: int) -> int:
        dims = len(self._node.shape)
        if not -dims <= dim < dims:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-dims}, {dims - 1}], "
                f"but got {dim})"
            )
        return dim

    def dim(self) -> int:
        return len(self._node.shape)

    def numel(self) -> int:
        return int(self._node.numel)

    nelement = numel
    ndimension = dim

    def element_size(self) -> int:
        return int(self._node.dtype.itemsize)

    def storage_offset(self) -> int:
        return int(self._node.offset)

    def data_ptr(self) -> int:
        return 0

    def get_device(self) -> int:
        return -1

    def is_floating_point(self) -> bool:
        return self._node.dtype.is_floating_point

    def is_complex(self) -> bool:
        return self._node.dtype.is_complex

    def is_contiguous(self, memory_format: Any = torch.contiguous_format) -> bool:
        node = self._node
        with torch._C.DisableTorchFunctionSubclass():
            return meta_of(node).is_contiguous(memory_format=memory_format)

    def __len__(self) -> int:
        if not self._node.shape:
            raise TypeError("len() of a 0-d tensor")
        return int(self._node.shape[0])

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        recording = self._recording
        chain = recording.book.calls(self._node.chain)
        return (
            f"RecordingTensor({recording.names[self._tensor]!r}, {tuple(self._node.shape)}, "
            f"{self._node.dtype}, {chain})"
        )

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self._valued("__bool__"))

    def __int__(self) -> int:
        return int(self._valued("__int__"))

    def __index__(self) -> int:
        return int(self._valued("__index__"))

    def __float__(self) -> float:
        return float(self._valued("__float__"))

    def __complex__(self) -> complex:
        return complex(self._valued("__complex__"))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._valued("__array__")

    def __contains__(self, value: Any) -> bool:
        return bool(self._valued("__contains__"))

    def item(self) -> Any:
        return self._valued("item")

    def tolist(self) -> Any:
        return self._valued("tolist")

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return self._valued("numpy")

    def untyped_storage(self) -> Any:
        return self._valued("untyped_storage")

    def storage(self) -> Any:
        return self._valued("storage")

    def __deepcopy__(self, memo: Any) -> Any:
        return self._valued("__deepcopy__")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._valued("__reduce_ex__")

    def _valued(self, call: str) -> NoReturn:
        refuse(self, call, VALUES)
