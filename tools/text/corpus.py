"""Texts that tell tokenizers apart: code, scripts, marks, digits, white space, special tokens, byte patterns."""

import random

TEXTS = [
    "Hello world",
    " leading and trailing ",
    "don't I'll WE'RE they'Ve it'S 'tis o'clock d'accord",
    "1 12 123 1234 12345 1234567 3.14159 1,000,000 0x1F ½ ² ٣٤ १२३ Ⅷ",
    "a  b   c    d     e\t\tf\t g \t h",
    "line\nline\r\nline\n\n\nline\r\r\nend \n  indented\n\n  \n\ttab\n ",
    "   ",
    "\n",
    "\n\n \n",
    " \t\n x",
    "def f(x):\n    return {'a': [x**2 for _ in range(10)], \"b\": x != 3}  # done\n",
    "#include <stdio.h>\nint main(void) {\n\treturn 0;\n}\n",
    "https://example.org/a/b?c=d&e=%20#f user@example.com C:\\dir\\file.txt //x /* y */",
    "Zwölf Boxkämpfer jagen Viktor über den großen Sylter Deich, naïve café, ÅÄÖ ßẞ Ǆǅǆ",
    "Съешь же ещё этих мягких французских булок Ελληνικά γλώσσα",
    "今天天气很好。我们去公园吧！「日本語」のテキスト、カタカナとひらがな 한국어 텍스트입니다",
    "العربية النص مرحبا עברית שלום हिन्दी देवनागरी ไทยภาษา",
    "😀😃 👩‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 ❤️ ✂️ ☃",
    "e\u0301 cafe\u0301 n\u0303 o\u0308 a\u030a\u0301 \u0301alone",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero\u200dwidth\u2028line\u2029par\u0085next",
    "...!!! ??? --- === ((a)) [[b]] {{c}} <<d>> $5 €6 £7 50% #1 @x ^y ~z |w| `q`",
    "CamelCaseWord snake_case_word SCREAMING_CASE mixedUPPERlower iPhone McDonald XMLHttpRequest",
    "x=1;y=2;z=x+y\nif(x<y&&y>z||!w){x++;--y;}",
    "a\u200db \ufeffbom \u00adsoft 𝔘𝔫𝔦 𐍈 𠜎 ﬁ ﷺ",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>a<|endoftext|> <|endoftext|>\n",
    "a<tool>b </tool> <tool><tool> a größe  x b",
    "<|im_start|<|im_end|>|> <| im_start |> <|IM_START|>",
    "Ġ Ċ Ā ▁ ▁▁a <0x41> <0x0A> <unk> <s> </s>",
    "aaaaaaaaaaaaaaaaaaaa abababababab          x",
    "'s 't 're '  's''s \"'ll\" ’s",
    "0000000000 007 1e-10 1_000 v1.2.3-rc4 2024-01-31T23:59:59Z",
]

ENGLISH = [
    "The quick brown fox jumps over the lazy dog and runs away from the hunters in the forest.",
    "It was the best of times, it was the worst of times, it was the age of wisdom.",
    "There are 1234 reasons to test 100 things, and 2024 was not the first of the years in which they were tested.",
    "We're sure they'll say that it isn't what you'd want, but I've seen that they don't mind.",
    "    for i in range(10):\n        if i % 2 == 0:\n            print(i, i ** 2)\n        else:\n            continue\n",
    "A tokenizer splits text into pieces; pieces become numbers; numbers become vectors.",
]

ALPHABET = list("aabcdeeeinorstt  \n\t.,'0123AZ_-<>|") + ["ä", "ß", "é", "e\u0301", "я", "中", "。", "😀", "\u200d", "▁"]


def random_texts(seed, count):
    """Short random texts over an alphabet in which merges overlap."""
    rng = random.Random(seed)
    return ["".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 40))) for _ in range(count)]
