"""Token ids from whatever holds them."""

from __future__ import annotations

from typing import Any

from . import _engine


def token_array(ids: Any):
    """One dimension of int32, without a copy where it is that already."""
    import numpy as np

    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    array = np.asarray(ids if hasattr(ids, "__array__") else list(ids))
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.size == 0:
        return np.empty(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _engine.InputError(f"token ids: expected one list of whole numbers, got {array.dtype} {list(array.shape)}")
    if array.dtype != np.int32:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high > np.iinfo(np.int32).max:
            raise _engine.InputError(f"token ids: expected 0 to 2147483647, got {low if low < 0 else high}")
    return np.ascontiguousarray(array, dtype=np.int32)
