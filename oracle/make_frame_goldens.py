"""Writes src/text/testdata/frames.json: what transformers puts around a text, for every way to say it in two files.

Run once with transformers 4.38 and once with a 5.x; each fills its own column:  python oracle/make_frame_goldens.py
"""
import itertools
import json
import os
import pathlib
import tempfile

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")
import transformers  # noqa: E402

OUT = pathlib.Path(__file__).resolve().parent.parent / "src" / "text" / "testdata" / "frames.json"
VOCAB = {"<s>": 0, "</s>": 1, "H": 2, "i": 3, "Hi": 4, "<b>": 5}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def template(before, after):
    piece = lambda token: {"SpecialToken": {"id": token, "type_id": 0}}
    text = lambda name, type_id: {"Sequence": {"id": name, "type_id": type_id}}
    return {"type": "TemplateProcessing",
            "single": [piece(t) for t in before] + [text("A", 0)] + [piece(t) for t in after],
            "pair": [text("A", 0), text("B", 1)],
            "special_tokens": {t: {"id": t, "ids": [VOCAB[t]], "tokens": [t]} for t in before + after}}


POST_PROCESSORS = {
    "none": None, "byte_level": BYTE_LEVEL, "bos": template(["<s>"], []), "bos_eos": template(["<s>"], ["</s>"]),
    "sequence": {"type": "Sequence", "processors": [BYTE_LEVEL, template(["<s>"], [])]},
}
NAMES = {
    "strings": {"bos_token": "<s>", "eos_token": "</s>"},
    "objects": {k: {"__type": "AddedToken", "content": v, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
                for k, v in (("bos_token", "<b>"), ("eos_token", "</s>"))},
    "null": {"bos_token": None, "eos_token": None}, "absent": {},
}
CLASSES = ["PreTrainedTokenizerFast", "LlamaTokenizerFast", "LlamaTokenizer", "CodeLlamaTokenizerFast", "GemmaTokenizerFast",
           "GPT2TokenizerFast", "Qwen2TokenizerFast"]
ABSENT = "absent"


def tokenizer_json(post_processor):
    special = [{"id": VOCAB[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for t in ("<s>", "</s>", "<b>")]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": BYTE_LEVEL, "post_processor": POST_PROCESSORS[post_processor], "decoder": BYTE_LEVEL,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "vocab": VOCAB, "merges": ["H i"]}}


def cases():
    for case in itertools.product(CLASSES, (ABSENT, None, True, False), (ABSENT, None, True, False), NAMES, POST_PROCESSORS):
        _, _, eos, names, post = case
        if names == "strings" or (eos in (ABSENT, True) and post in ("none", "bos")):
            yield case


def ids(name, bos, eos, names, post):
    """What "Hi" becomes; null where transformers refuses the folder."""
    config = {"tokenizer_class": name, **NAMES[names], "unk_token": None}
    config.update({k: v for k, v in (("add_bos_token", bos), ("add_eos_token", eos)) if v != ABSENT})
    with tempfile.TemporaryDirectory() as folder:
        files = {"tokenizer.json": tokenizer_json(post), "tokenizer_config.json": config, "config.json": {"model_type": "deepseek"}}
        for file, value in files.items():
            pathlib.Path(folder, file).write_text(json.dumps(value))
        try:
            return transformers.AutoTokenizer.from_pretrained(folder)("Hi")["input_ids"]
        except Exception:  # ValueError, or an ImportError on the way to the slow tokenizer
            return None


def main():
    column = {"4": 5, "5": 6}[transformers.__version__.split(".")[0]]
    old = json.loads(OUT.read_text()) if OUT.exists() else {}
    rows = [[*case, None, None] for case in cases()]
    for row, before in itertools.zip_longest(rows, old.get("rows", [])):
        row[5:] = before[5:] if before else row[5:]
        row[column] = ids(*row[:5])
    head = {"versions": dict(sorted({**old.get("head", {}).get("versions", {}), str(column - 1): transformers.__version__}.items())),
            "columns": ["tokenizer_class", "add_bos_token", "add_eos_token", "names", "post_processor", "4", "5"], "names": NAMES,
            "files": {name: tokenizer_json(name) for name in POST_PROCESSORS}}
    lines = ",\n".join(json.dumps(row) for row in rows)
    OUT.write_text('{"head": %s,\n"rows": [\n%s\n]}\n' % (json.dumps(head), lines))
    print(transformers.__version__, len(rows), "rows", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
