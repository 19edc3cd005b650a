#!/usr/bin/env python3
"""Makes src/store/gguf/testdata/: blocks of every type that is read, as PyPI `gguf` writes them, and the numbers it takes out of them.

types.gguf holds, under the name of each type, two rows of 512 numbers, and metadata of every kind. types.safetensors holds the same
numbers in F32; and under written.TYPE what `gguf` makes of the tensor "numbers" as that type. Run with a Python that has gguf and safetensors.
"""

import pathlib

import gguf
import numpy as np
from gguf import quants
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "src/store/gguf/testdata"
ROWS, COLUMNS = 2, 512
READ = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
WRITTEN = ["F16", "BF16", "Q8_0", "Q4_0"]
# Where the halves lie in a block: scales, and minima.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def random_blocks(name, rng):
    """Bytes of a quantised tensor: all of them random but the halves, which are finite, some of them denormal."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = rng.integers(0, 256, (ROWS * COLUMNS // block, size), dtype=np.uint8)
    for at in HALVES[name]:
        halves = (rng.standard_normal(len(data)) * 0.02).astype(np.float16)
        halves[0] = np.float16(3e-7)
        data[:, at:at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return data.reshape(ROWS, -1)


def main():
    rng = np.random.default_rng(23)
    OUT.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(OUT / "types.gguf", "deepseek")
    for kind, value in [("uint8", 200), ("int8", -100), ("uint16", 60000), ("int16", -30000), ("uint32", 4000000000), ("int32", -2000000000),
                        ("uint64", 1 << 40), ("int64", -(1 << 40)), ("float32", 1e-6), ("float64", 1e-300), ("bool", True), ("string", "grün")]:
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
    writer.add_array("test.strings", ["a", "", "grün"])
    writer.add_array("test.integers", [1, -2, 3])
    numbers = (rng.standard_normal((ROWS, COLUMNS)) * 0.05).astype(np.float32)
    numbers[0, :64] = 0
    numbers[0, 40] = -0.7
    numbers[1, 0] = 60000
    expected = {"numbers": numbers}
    for name in READ:
        kind = gguf.GGMLQuantizationType[name]
        if name in HALVES:
            data = random_blocks(name, rng)
            writer.add_tensor(name, data, raw_dtype=kind)
        else:
            data = numbers if name == "F32" else quants.quantize(numbers, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        expected[name] = quants.dequantize(data, kind).astype(np.float32).reshape(ROWS, COLUMNS)
    for name in WRITTEN:
        expected[f"written.{name}"] = np.ascontiguousarray(quants.quantize(numbers, gguf.GGMLQuantizationType[name])).view(np.uint8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, OUT / "types.safetensors")


if __name__ == "__main__":
    main()
