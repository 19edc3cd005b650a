"""Texts for the tokenizer goldens: a small training corpus and the mixed-script strings to encode. Written for this project."""
import random

CORPUS = """
The river was low that summer, and the boats lay on the sand like sleeping animals. Nobody spoke of the mill any more.
She counted the lanterns twice: there were seventeen, and then there were eighteen. "It's the wind," said the keeper.
We don't know what they'll say, but I've heard that he's going and you're staying; that's how it'd be, I'm sure.
Experts are chosen by a router. Each token goes to a few experts, and the shared experts see every token.
A small model learns quickly; a large model learns well. The loss falls, the loss rises, the loss falls again.
def route(tokens, experts, top_k=2):
    scores = softmax(tokens @ centroids.T)
    for i, s in enumerate(scores):
        if s > 0.5:
            return experts[i]  # the first good one
    return None
int main(void) { for (int i = 0; i < 1024; ++i) { sum += x[i] * y[i]; } return sum == 0 ? 1 : 0; }
SELECT name, COUNT(*) FROM rivers WHERE length > 100 GROUP BY name ORDER BY 2 DESC;
{"name": "otter", "legs": 4, "weight": 8.25, "tags": ["wet", "brown"], "alive": true}
Year 1987 had 365 days, 12 months and 52 weeks; 3.14159 is close to pi, and 2^10 = 1024, 10% of 250 is 25.
L'été dernier, les enfants ont joué près de la forêt; où êtes-vous allés? Ça dépend du garçon naïf et de sa sœur.
Die Bäume wuchsen über die Straße hinaus, und die Möwen schrien größer als gewöhnlich: schön war's.
El niño pequeño corrió mañana y tarde; ¿qué hora es? ¡Señor, el pingüino está aquí!
Žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. Árvíztűrő tükörfúrógép. İstanbul'da şeker çok güzel.
Съешь же ещё этих мягких булок, да выпей чаю. Река течёт медленно, и лодки стоят на песке.
Ο ποταμός ήταν χαμηλός εκείνο το καλοκαίρι και οι βάρκες κοιμόνταν στην άμμο.
那年夏天河水很低，船只像睡着的动物一样躺在沙滩上。专家由路由器选择，每个词元只去少数专家那里。
川の水は低く、舟は砂の上で眠っていた。ルーターは専門家を選ぶ。カタカナとひらがな。
그해 여름 강물은 낮았고 배들은 모래 위에 잠든 동물처럼 누워 있었다. 전문가는 라우터가 고른다.
كان النهر منخفضًا في ذلك الصيف، وكانت القوارب نائمة على الرمال. السعر ١٢٣ دينارًا.
הנהר היה נמוך באותו קיץ, והסירות ישנו על החול. שָׁלוֹם עוֹלָם.
उस गर्मी में नदी नीची थी और नावें रेत पर सो रही थीं। मूल्य १२३ रुपये है।
แม่น้ำในฤดูร้อนนั้นต่ำ และเรือก็นอนอยู่บนทราย
The emoji 😀 smiled, 👍🏽 waved, and 👩‍👩‍👧‍👦 went home 🚀🚀 under the 🏳️‍🌈.
"""

BASE = [
    "", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\t\t\n", "\u00a0", "\u3000", "a", "A", "é", "中", "😀",
    "Hello world", " Hello world", "  Hello   world  ", "Hello, world!", "hello\nworld\n", "a b c d e f g",
    "It's we've I'm you're he'd they'll don't IT'S WE'VE", "'s 't 're 've 'm 'll 'd", "''''", "can''t",
    "the the the the", "The river was low that summer", "  leading", "trailing  ", "tabs\tand\tmore", "a\r\nb\rc\nd",
    "0", "1", "12", "123", "1234", "12345678901234567890", "3.14159", "1,000,000", "1e-10", "0xFF", "٣٤٥", "१२३", "Ⅷ", "½ ¾",
    "x²+y³=z⁴", "10% of 250", "v1.2.3-rc4", "2024-02-29T12:34:56Z", "+49 (0)30 123", "a1b2c3", "１２３ fullwidth",
    "été", "naïve café", "e\u0301te\u0301", "Ångström", "A\u030angstro\u0308m", "groß STRASSE", "œuvre Æsir", "ñandú", "øl på ålen", "smørrebrød",
    "Žluťoučký kůň", "İstanbul ısı", "ǅ ǈ ǋ", "ﬁne ﬂow", "ſtrange 'ſ", "ÀÁÂÃÄÅÆÇ", "ø", "öÿõ÷ûýÀùÁþü",
    "Съешь же ещё этих мягких", "РЕКА река Река", "нещо на Български", "ѣ і ѵ", "ϊ ΰ ά ἀ ᾳ", "Ο ποταμός",
    "那年夏天河水很低", "我想在apple工作1314151天～", "專家由路由器選擇", "𠀀𠀁𪚥", "川の水は低く", "ｶﾞｷﾞ", "カタカナ・ひらがな", "々〆ヶ", "그해 여름 강물은", "ㄱㄴㄷ ㅏㅑ", "각",
    "中文，标点。「引号」！？", "全角　空格", "한국어 문장 부호.", "日本語とEnglishの混在",
    "كان النهر منخفضًا", "السعر ١٢٣ دينارًا", "مَرْحَبًا", "لا إله", "ـــ", "\u200fمرحبا\u200e", "اردو پاکستان ٹ ڈ",
    "הנהר היה נמוך", "שָׁלוֹם עוֹלָם", "יִדיש", "א\"ב ג'ד", "नदी नीची थी", "क्षत्रिय", "श्री", "हिन्दी १२३ रुपये", "தமிழ் எழுத்து", "తెలుగు", "বাংলা ভাষা", "ગુજરાતી", "ಕನ್ನಡ", "മലയാളം", "සිංහල", "แม่น้ำ", "ກຂຄ", "མི་རིགས", "မြန်မာ", "ភាសាខ្មែរ", "አማርኛ", "ქართული", "Հայերեն", "ᏣᎳᎩ", "ᠮᠣᠩᠭᠣᠯ", "a\u180eb",
    "😀😁😂", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "😶‍🌫️", "❤️", "☎︎", "1️⃣ 2️⃣", "🤷🏿‍♀️ ok", "a😀b", " 😀 ", "🚀 (normal)", "👨‍💻codes",
    "zero\u200bwidth\u200cjoin\u200der", "soft\u00adhyphen", "\ufeffbom", "\u2028line\u2029para", "\u0085nel", "nbsp\u00a0here", "thin\u2009space\u2003em",
    "\x00", "a\x00b", "\x01\x02\x03", "\x07bell\x1b[31mred\x1b[0m", "\x7f", "\x80\x9f", "\ufffd", "\ufffe", "\U0010ffff", "\ue000", "\U000e0041",
    "def f(x):\n    return x**2  # square\n", "for (int i=0;i<10;++i){a[i]+=b[i];}", "if (a != b && c >= d || !e) { }", "#include <vector>\n", "x = {'a': [1, 2, (3,)]}", "<html><body class=\"x\">&amp;</body></html>", "https://example.org/a/b?c=d&e=%20#f", "user@example.org", "C:\\path\\to\\file.txt", "$HOME/.bashrc", "```python\nprint('hi')\n```", "\\frac{a}{b} \\sum_{i=0}^{n}", "SELECT * FROM t WHERE a='b''c';", "a->b::c<d>(e)", "/* c */ // d", "<!-- -->", "snake_case camelCase PascalCase kebab-case SCREAMING_CASE", "__init__", "...", "…", "--", "—", "----------------", "================", "!!!???", "(((())))", "[]{}<>", "@#$%^&*", "~`|\\", "«»„“”‘’", "¿Qué? ¡No!", "€5 £6 ¥7 ₹8 ₿9", "±×÷≠≤≥∞∑∫√", "→←↑↓⇒", "♔♕♖♠♣", "①②③", "ª º ¹ ² ³", "™®©",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "abababababababababababababababab", "          x", "x          ", "\n\n\n\nx\n\n\n", "          1", "     \n     \n  y", "a" * 100, "é" * 40, "中" * 50, "😀" * 12, " " * 33, "\n" * 17, "1" * 41, "!" * 35, "\t \t \t ",
    "<s>", "</s>", "<|end|>", "a<|end|>b", " <|end|> ", "x <|pad|> y", "word maskword mask masks", "mask", "(mask)", "_mask_ émask mask².", "yes<keep>no", "<keep", "<|en", "<|end|><|end|>", "  <|strip|>  a", "a  <|strip|>  <|strip|>b", "Day day DAY", "▁ ▁▁ a▁b", "<0x41>", "<0xE4><0xBD>", "<unk>", "Ġthe Ċ", "ĠĠ", "\u0120x",
    "\U0001cc00 recent \U0001e5d0", "\u1c89\u1c8a", "\U00031350\U000323af", "\U0002ebf0 han", "\U000105c0\U000105f3", "\ua7cb\ua7da\ua7dc", "\u0897\u0cf3", "\U00010d40\U00010d49 digits", "\U00011de0",
]

BROKEN = [
    b"\xff", b"\xc0\xaf", b"abc\xff", b"\xffabc", b"a\xe4\xbdb", b"\xe4\xbd", b"\xe4", b"\x80", b"\x80\x80\x80", b"\xf0\x9f\x98", b"x\xf0\x9f\x98 y", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"caf\xe9 au lait", b"\xc3\x28", b"na\xc3 \xaf", b"\xe2\x82", b"price \xe2\x82 5", b"\xfe\xfe\xff\xff", b"\xf8\x88\x80\x80\x80", b"ok \xc3\xa9 \xc3 end", "中".encode()[:2] + "中".encode(), b"a\xf5b\xf6c", b"line\n\xff\nline", b" \xff ", b"  \xe4\xbd  ", b"1\xff2", "Grüße".encode("latin-1"), "日本".encode("euc-jp"), "Привет".encode("cp1251"), bytes(range(128, 256)), bytes(range(256)), b"<s>\xff</s>", b"a<|end|>\xff<|end|>b", b"\xc3", b"hello\xc3", b"\xa9hello",
]


def mixed(count: int, seed: int) -> list[str]:
    """Random concatenations of BASE strings and words of the corpus: every script next to every other."""
    rng = random.Random(seed)
    words = CORPUS.split()
    out = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(2, 6)):
            kind = rng.random()
            if kind < 0.45:
                parts.append(rng.choice(BASE)[:30])
            elif kind < 0.85:
                parts.append(" ".join(rng.choice(words) for _ in range(rng.randint(1, 3))))
            else:
                parts.append(chr(rng.choice([rng.randint(0x20, 0x2FF), rng.randint(0x300, 0xD7FF), rng.randint(0xE000, 0x3FFFF)])))
        out.append(rng.choice(["", " ", "  ", "\n"]).join(parts))
    return out


def all_texts() -> list[bytes]:
    return [t.encode() for t in BASE + mixed(180, 1)] + BROKEN
