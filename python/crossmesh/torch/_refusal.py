# SPDX-License-Identifier: Apache-2.0
"""What a loader is told when it does what no chain records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from crossmesh._error import Error

if TYPE_CHECKING:
    from crossmesh.torch._described import DescribedTensor

__all__ = ["SUPPORTED", "VALUES", "Refused", "as_torch_raises", "error_of", "refuse"]

SUPPORTED = (
    "narrow, view, reshape, __getitem__, unsqueeze, squeeze, transpose, t, permute, flatten, "
    "contiguous, chunk, unbind, split, select"
)


class Refused(Error, NotImplementedError):
    """A loader did something to a tensor that no chain records."""


class _IndexRefused(Error, IndexError):
    pass


class _RuntimeRefused(Error, RuntimeError):
    pass


class _TypeRefused(Error, TypeError):
    pass


class _ValueRefused(Error, ValueError):
    pass


_AS_TORCH: dict[str, type[Error]] = {
    "IndexError": _IndexRefused,
    "RuntimeError": _RuntimeRefused,
    "TypeError": _TypeRefused,
    "ValueError": _ValueRefused,
}

VALUES = "needs values, and a placeholder has none"


def error_of(tensor: DescribedTensor, call: str, why: str) -> Refused:
    recording = tensor._recording
    return Refused(
        "unsupported",
        f"{call}: {why}",
        {
            "tensor": repr(recording.names[tensor._tensor]),
            "chain": recording.book.calls(tensor._node.chain),
            "supported": SUPPORTED,
        },
    )


def refuse(tensor: DescribedTensor, call: str, why: str) -> NoReturn:
    """Raises Refused for a call on a placeholder."""
    raise error_of(tensor, call, why)


def as_torch_raises(error: Error) -> Error:
    kind = _AS_TORCH.get(error.facts.get("torch raises", ""))
    if kind is None:
        return error
    return kind(error.code, error.summary, error.facts, error.hint, text=str(error))
