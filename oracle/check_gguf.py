#!/usr/bin/env python3
"""Compares perplexities of GGUF files in dsmoe and in llama.cpp, by hand: python oracle/check_gguf.py MODEL TEXT [--dsmoe build/dsmoe]

Converts MODEL to F32 and BF16, and has llama.cpp's quantisers make every block type that its rows allow. A file of blocks is compared
with llama.cpp over the same numbers as F32, since llama.cpp rounds activations where weights are blocks. Needs PyPI gguf and xllamacpp, whose
library has llama.cpp's C interface; the structures below are checked by their default values.
"""
import argparse
import ctypes
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import xllamacpp

BLOCKS = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
WINDOW = 256
INT, POINTER, UINT, FLOAT = ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_float
PAD = [("pad", ctypes.c_byte * 256)]  # fields of later versions


def structure(*kinds):
    fields = [(name, kind) for kind, names in kinds for name in names.split()]
    return type("Structure", (ctypes.Structure,), {"_fields_": fields + PAD})


ModelParams = structure((POINTER, "devices overrides"), (INT, "gpu_layers split load_mode main_gpu"), (POINTER, "split_of callback data kv"),
                        (ctypes.c_bool, "vocab_only check extra_buffers"))
ContextParams = structure((UINT, "n_ctx n_batch n_ubatch n_seq rs outputs outputs_seq"), (INT, "threads threads_batch kind rope pooling attention flash"),
                          (FLOAT, "base scale ext factor fast slow"), (UINT, "orig"), (FLOAT, "defrag"), (POINTER, "eval eval_data"), (INT, "type_k type_v"))


class Batch(ctypes.Structure):
    _fields_ = [("n", INT), ("token", ctypes.POINTER(INT)), ("embd", POINTER), ("pos", POINTER), ("n_seq", POINTER), ("seq", POINTER), ("logits", POINTER)]


class Llama:
    def __init__(self):
        files = pathlib.Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
        self.library = ctypes.CDLL(str(next(files)), mode=os.RTLD_LAZY)
        self.silence = ctypes.CFUNCTYPE(None, INT, ctypes.c_char_p, POINTER)(lambda level, text, data: None)
        self.call("llama_log_set", None, self.silence, POINTER(None))
        self.call("llama_backend_init", None)

    def call(self, name, result, *arguments):
        function = getattr(self.library, name)
        function.restype, function.argtypes = result, [type(a) for a in arguments]
        return function(*arguments)

    def perplexity(self, path, ids):
        params = self.call("llama_model_default_params", ModelParams)
        params.extra_buffers = False
        model = POINTER(self.call("llama_model_load_from_file", POINTER, ctypes.c_char_p(str(path).encode()), params))
        params = self.call("llama_context_default_params", ContextParams)
        assert (params.n_ctx, params.rope, params.type_k, params.type_v) == (512, -1, 1, 1), "xllamacpp has another layout of parameters"
        params.n_ctx = params.n_batch = params.n_ubatch = WINDOW
        params.threads = params.threads_batch = 1
        params.flash = params.type_k = params.type_v = 0  # F32
        context = POINTER(self.call("llama_init_from_model", POINTER, model, params))
        vocabulary = POINTER(self.call("llama_model_get_vocab", POINTER, model))
        width = self.call("llama_vocab_n_tokens", INT, vocabulary)
        memory = POINTER(self.call("llama_get_memory", POINTER, context))
        nats = 0.0
        for begin in range(0, len(ids) - 1, WINDOW):
            inputs, targets = ids[begin:begin + WINDOW], np.array(ids[begin + 1:begin + WINDOW + 1])
            self.call("llama_memory_clear", None, memory, ctypes.c_bool(True))
            tokens = (INT * len(inputs))(*inputs)
            flags = (ctypes.c_int8 * len(inputs))(*[1] * len(inputs))
            batch = Batch(len(inputs), tokens, None, None, None, None, ctypes.cast(flags, POINTER))
            assert self.call("llama_decode", INT, context, batch) == 0
            logits = np.ctypeslib.as_array(self.call("llama_get_logits", ctypes.POINTER(FLOAT), context), (len(inputs), width))
            logits = logits[:len(targets)].astype(np.float64)
            top = logits.max(axis=1)
            nats += (top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[np.arange(len(targets)), targets]).sum()
        self.call("llama_free", None, context)
        self.call("llama_model_free", None, model)
        return math.exp(nats / (len(ids) - 1))

    def quantise(self, source, target, kind):
        """Matrices as `kind`, or as F32 where it is None; false where rows are no whole blocks."""
        reader = gguf.GGUFReader(source)
        writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
        for key, field in reader.fields.items():
            if not key.startswith("GGUF.") and key != "general.architecture":
                is_array = field.types[0] == gguf.GGUFValueType.ARRAY
                writer.add_key_value(key, field.contents(), field.types[0], sub_type=field.types[-1] if is_array else None)
        for tensor in reader.tensors:
            shape = [int(n) for n in reversed(tensor.shape)]
            numbers = np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(shape)
            if kind is None or len(shape) == 1 or "ffn_gate_inp" in tensor.name:
                writer.add_tensor(tensor.name, numbers)
                continue
            block, size = gguf.GGML_QUANT_SIZES[kind]
            if shape[-1] % block:
                return False
            out = np.zeros([*shape[:-1], shape[-1] // block * size], dtype=np.uint8)
            rows = ctypes.c_int64(numbers.size // shape[-1])
            self.call("ggml_quantize_chunk", ctypes.c_size_t, INT(int(kind)), POINTER(numbers.ctypes.data), POINTER(out.ctypes.data), ctypes.c_int64(0), rows,
                      ctypes.c_int64(shape[-1]), POINTER(None))
            writer.add_tensor(tensor.name, out, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--dsmoe", default="build/dsmoe")
    parser.add_argument("--tokens", type=int, default=20000)
    options = parser.parse_args()

    def dsmoe(*arguments):
        return subprocess.run([options.dsmoe, *map(str, arguments)], check=True, capture_output=True, text=True).stdout

    llama = Llama()
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        ids = [int(i) for i in re.findall(r"\d+", dsmoe("tokenizer", "encode", options.model, options.text))][:options.tokens]
        (scratch / "ids.txt").write_text(" ".join(map(str, ids)))

        def ours(model, dtype):
            return json.loads(dsmoe("eval", model, "--tokens", scratch / "ids.txt", "--window", WINDOW, "--dtype", dtype, "--json", "-q"))["perplexity"]

        def compare(name, path, dtype, reference, bound):
            nonlocal worst
            a, b = ours(path, dtype), llama.perplexity(reference, ids)
            worst = max(worst, abs(b / a - 1) / bound)
            print(f"{name:8} dsmoe {a:.6f}  llama.cpp {b:.6f}  {b / a - 1:+.1e}", flush=True)

        for kind, dtype, bound in [("f32", "fp32", 1e-4), ("bf16", "bf16", 1e-3)]:
            dsmoe("convert", options.model, "--type", kind, "-o", scratch / f"{kind}.gguf", "-q")
            compare(kind, scratch / f"{kind}.gguf", dtype, scratch / f"{kind}.gguf", bound)
        for name in BLOCKS:
            if not llama.quantise(scratch / "f32.gguf", scratch / "blocks.gguf", gguf.GGMLQuantizationType[name]):
                print(f"{name:8} rows are no whole blocks")
                continue
            llama.quantise(scratch / "blocks.gguf", scratch / "numbers.gguf", None)
            compare(name, scratch / "blocks.gguf", "fp32", scratch / "numbers.gguf", 1e-4)
    return 1 if worst > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
