"""Writes src/text/testdata: four kinds of tokenizer.json and what PyPI `tokenizers` makes of the texts with them.

Run where `tokenizers` is installed:  python oracle/make_tokenizer_goldens.py
The tokenizers are trained here on the corpus of tokenizer_texts.py. Broken UTF-8, which a Python string cannot hold, follows
docs/tokenizer.md: the valid parts as PyPI encodes them, the broken bytes as byte tokens or U+FFFD.
"""
import copy
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_texts import CORPUS, all_texts

OUT = pathlib.Path(__file__).resolve().parent.parent / "src" / "text" / "testdata"
LINES = CORPUS.splitlines(keepends=True)


def dumps(value) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def parts_of(data: bytes) -> list[tuple[bytes, bool]]:
    """(bytes, is_valid) runs: each ill-formed part as CPython and the Unicode standard cut them."""
    parts, at = [], 0
    while at < len(data):
        try:
            data[at:].decode()
            parts.append((data[at:], True))
            break
        except UnicodeDecodeError as e:
            if e.start:
                parts.append((data[at : at + e.start], True))
            parts.append((data[at + e.start : at + e.end], False))
            at += e.end
    return parts


def byte_symbols() -> dict[int, str]:
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {}, 0
    for b in range(256):
        table[b] = chr(b) if b in keep else chr(0x100 + extra)
        extra += b not in keep
    return table


SYMBOL = byte_symbols()


def common_characters(lines, count):
    """By frequency, ties by code point: the trainer's own choice among equals changes from run to run."""
    text = "".join(lines).replace(" ", "▁")
    return sorted(sorted(set(text)), key=lambda c: -text.count(c))[:count]


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def deepseek_like() -> Tokenizer:
    tok = Tokenizer(models.BPE())
    letters = "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓͰ-ͳΆΈ-ΊΎ-ΡΣ-ϵЀ-ҁҊ-ԯԱ-ՖႠ-ჅᏀ-Ᏽ"
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex("[\r\n]"), "isolated"),
        pre_tokenizers.Split(Regex(r"\s?[%s]+" % letters), "isolated"),
        pre_tokenizers.Split(Regex(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), "isolated"),
        pre_tokenizers.Split(Regex(r"\s+$"), "isolated"),
        pre_tokenizers.Split(Regex("[一-龥ࠀ-一가-퟿]+"), "isolated"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    alphabet = [s for b, s in SYMBOL.items() if b not in (0xC0, 0xC1) and b < 0xF5]
    tok.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False))
    tok.add_special_tokens([special("<s>"), special("</s>"), special("<|end|>"), special("<|strip|>", lstrip=True, rstrip=True)])
    tok.add_tokens([AddedToken(SYMBOL[b]) for b in (0xF8, 0xF6, 0xFF)] + [AddedToken("mask", single_word=True), AddedToken("<keep>", lstrip=True)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tok.token_to_id("<s>"))])
    return tok


def gpt2_like() -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=750, initial_alphabet=list(SYMBOL.values()), show_progress=False, special_tokens=["<|end|>"]))
    tok.add_tokens([AddedToken("<|pad|>", rstrip=True, normalized=False), AddedToken("mask", single_word=True, lstrip=True, normalized=True)])
    end = tok.token_to_id("<|end|>")
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<|end|> $A <|end|>", special_tokens=[("<|end|>", end)])])
    return tok


def llama_like() -> Tokenizer:
    """Byte fallback and no pre-tokenizer: trained on words, then the pre-tokenizer is taken away, as in the published files."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    tok.train_from_iterator(LINES[:26], trainers.BpeTrainer(vocab_size=900, limit_alphabet=110, initial_alphabet=common_characters(LINES[:26], 110), special_tokens=names, show_progress=False))
    data = json.loads(tok.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    data["pre_tokenizer"] = None
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    data["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    data["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                              "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                              "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    tok = Tokenizer.from_str(json.dumps(data))
    tok.add_tokens([AddedToken("Day", normalized=True), AddedToken("<keep>", normalized=False, rstrip=True)])
    return tok


def metaspace_like() -> Tokenizer:
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tok.normalizer = normalizers.Sequence([normalizers.Replace(Regex(r"[\t\f]"), " "), normalizers.Strip(left=False, right=True)])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Metaspace(prepend_scheme="first")])
    tok.decoder = decoders.Metaspace(prepend_scheme="first")
    tok.train_from_iterator(LINES[:24], trainers.BpeTrainer(vocab_size=600, limit_alphabet=150, initial_alphabet=common_characters(LINES[:24], 150), special_tokens=["<unk>", "</s>"], show_progress=False))
    tok.add_special_tokens([special("<|end|>")])
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tok


def merges_as_strings(data: dict) -> dict:
    data = copy.deepcopy(data)
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    return data


def continuation_of(data: dict) -> Tokenizer:
    """The same tokenizer without anything that puts a prefix in front of a text."""
    data = copy.deepcopy(data)
    if (norm := data["normalizer"]) and norm["type"] == "Sequence":
        norm["normalizers"] = [n for n in norm["normalizers"] if n["type"] != "Prepend"]
    if (pre := data["pre_tokenizer"]) and "add_prefix_space" in pre:
        pre["add_prefix_space"] = False
    return Tokenizer.from_str(json.dumps(data))


def encode(tok: Tokenizer, data: dict, text: bytes) -> list[int]:
    parts = parts_of(text)
    if all(valid for _, valid in parts):
        return tok.encode(text.decode(), add_special_tokens=False).ids
    byte_level = "ByteLevel" in json.dumps(data["pre_tokenizer"])
    vocab = data["model"]["vocab"]

    def byte_token(b):
        return vocab.get(SYMBOL[b] if byte_level else "<0x%02X>" % b)

    runs = []  # (kind, bytes): neighbours of one kind joined
    for part, valid in parts:
        raw = not valid and all(byte_token(b) is not None for b in part)
        piece = part if valid or raw else "\ufffd".encode()
        if runs and runs[-1][0] == raw:
            runs[-1][1] += piece
        else:
            runs.append([raw, bytearray(piece)])
    later, ids = continuation_of(data), []
    for i, (raw, piece) in enumerate(runs):
        if not raw:
            ids += (tok if i == 0 else later).encode(piece.decode(), add_special_tokens=False).ids
        elif byte_level:
            ids += [t.id for t in tok.model.tokenize("".join(SYMBOL[b] for b in piece))]
        else:
            ids += [byte_token(b) for b in piece]
    return ids


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    texts = all_texts()
    kinds = {"deepseek": deepseek_like(), "gpt2": gpt2_like(), "llama": llama_like(), "metaspace": metaspace_like()}
    rows = {"texts": [t.hex() for t in texts], "kinds": {}}
    for name, tok in kinds.items():
        data = json.loads(tok.to_str())
        written = merges_as_strings(data) if name in ("deepseek", "llama") else data
        (OUT / f"{name}.json").write_text(dumps(written) + "\n")
        tok = Tokenizer.from_file(str(OUT / f"{name}.json"))
        ids = [encode(tok, data, t) for t in texts]
        with_special = tok.encode("Hello world").ids
        decoded, skipped = [], []
        for text, row in zip(texts, ids):
            valid = all(v for _, v in parts_of(text))
            decoded.append(tok.decode(row, skip_special_tokens=False) if valid else None)
            skipped.append(tok.decode(row, skip_special_tokens=True) if valid else None)
        # Most texts come back as they were: only the others are written.
        odd = lambda out: {str(i): d for i, (d, t) in enumerate(zip(out, texts)) if d is not None and d.encode() != t}
        rows["kinds"][name] = {"ids": ids, "with_special": with_special, "decoded": odd(decoded), "skipped": odd(skipped)}
        print(name, tok.get_vocab_size(), "odd decodes", len(rows["kinds"][name]["decoded"]))
    (OUT / "cases.json").write_text(dumps(rows) + "\n")
    print(len(texts), "texts")


if __name__ == "__main__":
    main()
