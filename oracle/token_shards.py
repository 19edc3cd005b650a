"""Reads the token shards of a run and repeats its split into training and validation. See docs/data.md."""

import glob
import os
import struct
from dataclasses import dataclass

import numpy as np

FEW_DOCUMENTS, SECTION = 20, 64  # src/data/split.cc, src/data/shard_format.h
HEADER = struct.Struct("<8s2I13Q4IQ")


@dataclass
class Document:
    tokens: np.ndarray
    counted: np.ndarray  # does the token count as a target?
    content_hash: int


def read_shard(path):
    """-> documents, is it the last of its set?"""
    with open(path, "rb") as file:
        data = file.read()
    magic, version, token_bytes, file_bytes, _, num_tokens, _, num_documents = HEADER.unpack_from(data)[:8]
    is_last, has_mask = HEADER.unpack_from(data)[-4:-2]
    if magic != b"DSMOETOK" or version != 1 or file_bytes != len(data):
        raise ValueError(f"{path}: not a whole token shard of version 1")

    def aligned(offset):
        return -(-offset // SECTION) * SECTION

    begin = aligned(HEADER.size)
    tokens = np.frombuffer(data, f"<u{token_bytes}", num_tokens, begin).astype(np.int64)
    begin = aligned(begin + num_tokens * token_bytes)
    counted = np.ones(num_tokens, bool)
    if has_mask:
        size = (num_tokens + 7) // 8
        counted = np.unpackbits(np.frombuffer(data, np.uint8, size, begin), bitorder="little")[:num_tokens].astype(bool)
        begin = aligned(begin + size)
    table = np.frombuffer(data, np.dtype([("end", "<u8"), ("source", "<u4"), ("hash", "<u4")]), num_documents, begin)
    starts = [0, *table["end"].tolist()]
    spans = [slice(a, b) for a, b in zip(starts, starts[1:])]
    return [Document(tokens[s], counted[s], h) for s, h in zip(spans, table["hash"].tolist())], bool(is_last)


def read_corpus(folder):
    """All documents of the only set of shards under `folder`."""
    firsts = glob.glob(os.path.join(folder, "**", "00000.tokens"), recursive=True)
    if len(firsts) != 1:
        raise ValueError(f"{folder}: {len(firsts)} sets of token shards, expected one")
    documents, shard, is_last = [], 0, False
    while not is_last:
        part, is_last = read_shard(os.path.join(os.path.dirname(firsts[0]), f"{shard:05}.tokens"))
        documents += part
        shard += 1
    return documents


def philox(counter, key):
    """Philox4x32-10: four words from four words and a key of two."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def uniform(seed, purpose, stream, index):
    """Number `index` of a stream, in [0, 1): src/base/rng.h."""
    block = index // 2
    words = philox([block & 0xFFFFFFFF, block >> 32, purpose, stream], [seed & 0xFFFFFFFF, seed >> 32])
    first = index % 2 * 2
    return ((words[first + 1] << 32 | words[first]) >> 11) * 2.0**-53


def validation_part(documents, fraction, seed):
    """[(tokens, counted)] of what the run held out: whole documents, or the end of the tokens where there are few."""
    if len(documents) >= FEW_DOCUMENTS:
        chosen = [d for d in documents if uniform(seed, 2, 1, d.content_hash) < fraction]
        if 0 < len(chosen) < len(documents):
            return [(d.tokens, d.counted) for d in chosen]
    left, part = int(sum(len(d.tokens) for d in documents) * (1 - fraction)), []
    for d in documents:
        part.append((d.tokens[left:], d.counted[left:]) if left < len(d.tokens) else (d.tokens[:0], d.counted[:0]))
        left = max(0, left - len(d.tokens))
    return [p for p in part if len(p[0])]
