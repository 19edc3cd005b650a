"""Reads and writes safetensors files with numpy alone, byte for byte the same for the same tensors.

The public package keeps metadata in a hash map, so a file with two metadata entries is not reproducible; goldens must be.
"""

import json
import struct

import numpy as np

# bf16 has no numpy type: it travels as the uint16 that holds its bits, tagged with Bf16.
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32}


class Bf16:
    """An array of bf16 bit patterns."""

    def __init__(self, bits):
        self.bits = np.ascontiguousarray(bits, dtype=np.uint16)

    @property
    def shape(self):
        return self.bits.shape

    @staticmethod
    def from_float(x):
        u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
        return Bf16(((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16))  # nearest even; inputs are finite

    def to_float(self):
        return (self.bits.astype(np.uint32) << 16).view(np.float32).reshape(self.bits.shape)


def dtype_name(array):
    if isinstance(array, Bf16):
        return "BF16"
    for name, dtype in DTYPES.items():
        if name != "BF16" and array.dtype == dtype:
            return name
    raise TypeError(f"no safetensors type for numpy type {array.dtype}")


def write(path, tensors, metadata=None):
    """tensors: {name: numpy array or Bf16}. Wide types come first, then names ascend, so that every tensor is aligned."""
    header = {"__metadata__": dict(sorted((metadata or {}).items()))} if metadata else {}
    names = sorted(tensors, key=lambda n: (-np.dtype(DTYPES[dtype_name(tensors[n])]).itemsize, n))
    at, chunks = 0, []
    for name in names:
        tensor = tensors[name]
        data = np.ascontiguousarray(tensor.bits if isinstance(tensor, Bf16) else tensor).tobytes()
        header[name] = {"dtype": dtype_name(tensor), "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        chunks.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(chunks)


def read(path):
    """-> ({name: numpy array or Bf16}, metadata)."""
    with open(path, "rb") as file:
        blob = bytearray(file.read())  # writable, as torch wants its arrays
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(blob[8 + length + begin : 8 + length + end], dtype=DTYPES[entry["dtype"]])
        array = flat.reshape(entry["shape"])
        tensors[name] = Bf16(array) if entry["dtype"] == "BF16" else array
    return tensors, metadata
