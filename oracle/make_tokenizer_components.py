"""Writes src/text/testdata/components.json: single components of tokenizer.json and what PyPI `tokenizers` makes of them.

Run where `tokenizers` is installed:  python oracle/make_tokenizer_components.py
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parent.parent / "src" / "text" / "testdata" / "components.json"

TEXTS = [
    "", "a", "  two  spaces ", "Hello, wörld! It's 2024-02-29\r\n\tdef f(x):  return x**2\n\n",
    "naïve CAFÉ straße ǅ ﬁ e\u0301 \u200d \u180e \u0085x\u00a0y\u3000z", "我想在apple工作1314151天～ 川の水 그해 여름",
    "كان ١٢٣ הנהר שָׁלוֹם नदी १२३ แม่น้ำ ½²Ⅷ①", "😀👍🏽 👩‍👩‍👧‍👦\u2028$5+€6=<x>'ſ'LL 'Ve", "___a-b-c--d---  ---e\n \n  \n x  ",
    "\u2e43\u16eb\u166d«»¿\u061d\u2e52؟।", "\U0001cc00\U00031350a\ua7cb1\U00010d40\u0897", "aXbXXcXXXdX", "\x00\x01 \x1b[0m\x7f", "HTTPServerError parseJSON2XML iOS",
]
SMALL = TEXTS[:4] + TEXTS[8:9] + TEXTS[10:11]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
V3 = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Syntax where Oniguruma and PCRE2 differ, or where the translation does something.
SYNTAX = [
    r"\s", r"\S+", r"\d+", r"\w+", r"\W", r"\h+", r"\H+", r"\p{Han}+", r"\p{^L}+", r"\P{L}+", r"\p{Letter}+", r"[\P{L}]", r"[^\P{L}\d]+", r"[\W\d]+", r"[\w]+", r"[^\w]+",
    r"[^\S\r\n]+", r"[\S]+", r"[^\s\S]", r"^.", r".$", r"\s+$", r"\s*$", r"^\s+", r"\A.", r".\z", r".\Z", r"(?m:.+)", r".+", r"a|", r"x*", r"X?", r"\bx?\b", r"\b", r"\B.",
    r"(?i)ß|é|L", r"(?i:x)X", r"a(?i)x|b", r"(?<=X)[a-z]", r"(?<!X)[a-z]", r"[a-z](?=X)", r"(?>X+)", r"X++", r"X{2}", r"X{2,}", r"X{,2}", r"X{1,2}?", r"X{x}|\{", r"[[:space:]]+",
    r"[[:punct:]]+", r"[[:digit:][:xdigit:]]+", r"[^[:space:]]", r"[a[bc]X]+", r"[^a[bc]]+", r"[\-a\]]+", r"[a-c-]+", r"[-X]", r"[$-/]+", r"\x41|\x{4e00}|\u5de5", r"\R", r"[\b]", r"(?#note)X", r"(?<name>X)b",
    r"(X)(b|c)?", r"\p{C}", r"\p{Cn}+", r"[^\p{C}]+", r"\p{Lu}\p{Ll}+", r"\.|\-|\/|\'", "[\u3000-\u303f\uff01-\uff5e]+", r"[ࠀ-一]+", r"\t|\n|\r|\f|\v|\a|\e", "é", "[é-ü]",
]


FIRST_TEXTS = ["", "ab c", "  ab c", "a", "aab", "ba", "  a", " b", "éa b", "abab", "X ab", "aX b", " Xab"]


def first_pieces():
    """Whole pipelines: Metaspace's "first" behind normalizers that move the beginning of a text."""
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first")
    pres = [metaspace, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]),
            pre_tokenizers.Sequence([pre_tokenizers.Split("b", "isolated"), metaspace]),
            pre_tokenizers.Sequence([pre_tokenizers.Metaspace(replacement="_", prepend_scheme="first", split=False), pre_tokenizers.Split("a", "isolated"), metaspace])]
    N = normalizers
    norms = [None, N.Strip(), N.Strip(True, False), N.Strip(False, True), N.Prepend("▁"), N.Prepend("xy"), N.Replace("a", "bb"), N.Replace("ab", "x"), N.Replace("a", ""),
             N.Replace(Regex("^ "), ""), N.Replace(" ", "▁"), N.Replace(" ", ""), N.Replace(Regex("x*"), "-"), N.Replace(Regex(r"\s+"), " "),
             N.Sequence([N.Strip(), N.Prepend("x")]), N.Sequence([N.Prepend(" "), N.Strip()]), N.Sequence([N.Prepend("x"), N.Replace("xa", "y")]),
             N.Sequence([N.Strip(), N.Replace(Regex("x*"), "-")]), N.Sequence([N.Replace("a", "bb"), N.Replace("bb", "a")]), N.Sequence([N.Replace("ab", "x"), N.Prepend("b"), N.Replace("bx", "ab")])]
    chars = sorted(set("".join(FIRST_TEXTS) + "▁_xyb-"))
    rows = []
    for n in norms:
        for p in pres:
            tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(chars)}, merges=[]))
            if n is not None:
                tok.normalizer = n
            tok.pre_tokenizer = p
            tok.add_special_tokens([AddedToken("X", normalized=False)])
            rows.append({"json": json.loads(tok.to_str()), "cases": [[t, "".join(tok.encode(t).tokens)] for t in FIRST_TEXTS]})
    return rows


def normal_texts():
    """Mixtures of what NFC changes: marks in any order, letters with and without them, syllables of Hangul and their parts."""
    rng = random.Random(9)
    letters = [chr(c) for c in range(0x41, 0x250)] + ["\u1e69", "\u0958", "\u2126", "\u212b", "\ufb1d", "\u0344", "\U0001d15e", "\U00011935", "\U00011099", "\u0dd9", "\u09c7"]
    marks = [chr(c) for c in range(0x300, 0x370)] + list("\u0591\u05bc\u064b\u0651\u093c\u0dca\u0dcf\u09be\u09d7\u3099\u309a\u20d0\u1dce\u0898\U00011930\U000110ba\U0001d165\U0001d16e")
    jamo = [chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11a7, 0x11c3))] + ["\uac00", "\uac01", "\ud7a3", "\ud4b7"]
    kinds = [letters, marks, marks, jamo, list("aeou. \n\u3042\u4e00")]
    return ["".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(1, 24))) for _ in range(300)]


def dump(component, kind):
    tok = Tokenizer(models.BPE())
    setattr(tok, kind, component)
    return json.loads(tok.to_str())[kind]


def main() -> None:
    split = lambda p, b="isolated", i=False: pre_tokenizers.Split(p if isinstance(p, str) else p, b, i)
    pres = [split(Regex(p)) for p in (GPT2, CL100K, O200K, V3)]
    pres += [pre_tokenizers.Digits(True), pre_tokenizers.Digits(False), pre_tokenizers.WhitespaceSplit()]
    pres += [pre_tokenizers.ByteLevel(add_prefix_space=a, use_regex=r) for a in (True, False) for r in (True, False)]
    pres += [pre_tokenizers.Metaspace(replacement=r, prepend_scheme=p, split=s) for r, p, s in
             [("▁", "always", True), ("▁", "first", True), ("▁", "never", True), ("▁", "always", False), ("_", "first", True), ("-", "never", True)]]
    pres += [pre_tokenizers.Punctuation(b) for b in ("isolated", "removed", "merged_with_previous", "contiguous")]
    pres += [pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]),
             pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=True)]),
             pre_tokenizers.Sequence([])]
    rows = [(dump(p, "pre_tokenizer"), p, TEXTS) for p in pres]
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    for b in behaviors:
        for inv in (False, True):
            for pattern in ("X", " ", Regex("X+"), Regex(r"\p{L}"), Regex("X*"), Regex(r"(?=X)")):
                p = split(pattern, b, inv)
                rows.append((dump(p, "pre_tokenizer"), p, SMALL))
    for pattern in SYNTAX:
        p = split(Regex(pattern))
        rows.append((dump(p, "pre_tokenizer"), p, TEXTS))
    pre = [{"json": j, "cases": [[t, [s for s, _ in p.pre_tokenize_str(t) if s]] for t in texts]} for j, p, texts in rows]

    norms = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex("X*"), "-"),
             normalizers.Strip(True, True), normalizers.Strip(True, False), normalizers.Strip(False, True),
             normalizers.Sequence([normalizers.Strip(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.Replace("▁▁", "")])]
    norm = [{"json": dump(n, "normalizer"), "cases": [[t, n.normalize_str(t)] for t in TEXTS]} for n in norms]
    nfc = normalizers.NFC()
    norm.append({"json": dump(nfc, "normalizer"), "cases": [[t, nfc.normalize_str(t)] for t in TEXTS + normal_texts()]})

    tokens = [["▁Hello", "▁wor", "ld", "▁", "▁▁x", "!"], ["▁", "▁a"], ["a", "<0xE4>", "<0xBD>", "<0xA0>", "b"], [" a", "b ", "  c  "], ["ĠHe", "llo", "Ċ", "ä½", "ł"], ["x"], ["▁▁▁"], []]
    llama = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    decs = [decoders.ByteLevel(), decoders.Metaspace(), decoders.Metaspace(prepend_scheme="never"), decoders.Metaspace(replacement="a", prepend_scheme="first"), decoders.Fuse(), decoders.ByteFallback(),
            decoders.Strip(" ", 1, 0), decoders.Replace(Regex("[ab]"), "-"), decoders.Sequence(llama), decoders.Sequence(llama + [decoders.Strip(" ", 1, 0)]),
            decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]), decoders.Sequence([decoders.Fuse(), decoders.Strip("x", 0, 1)]) ]
    dec = []
    for d in decs:
        cases = []
        for t in tokens:
            try:
                cases.append([t, d.decode(t)])
            except BaseException:  # the oracle's Strip panics on short texts
                pass
        dec.append({"json": dump(d, "decoder"), "cases": cases})
    OUT.write_text(json.dumps({"pre_tokenizers": pre, "normalizers": norm, "decoders": dec, "first_pieces": first_pieces()}, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(len(pre), "pre-tokenizers", len(norm), "normalizers", len(dec), "decoders", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
