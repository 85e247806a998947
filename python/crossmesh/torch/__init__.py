# SPDX-License-Identifier: Apache-2.0
"""What a model's own weight loader does, recorded once.

`bake` runs a module's `load_weights` on placeholders that have a name, a shape and a dtype but no
values. Each copy that the loader makes becomes pieces of a target layout; what cannot be said as
pieces stays with the loader (opaque) and is reported with its reason.
"""

from __future__ import annotations

from crossmesh.torch._bake import Bake, Copied, Filled, bake, merge
from crossmesh.torch._placeholder import OpaqueTensor, RecordingTensor, placeholder
from crossmesh.torch._refusal import Refused

__all__ = [
    "Bake",
    "Copied",
    "Filled",
    "OpaqueTensor",
    "RecordingTensor",
    "Refused",
    "bake",
    "merge",
    "placeholder",
]
