"""Records how llama.cpp's llama-tokenize splits texts with the vocabularies of GGUF files, and Hugging Face's own
tokenizers package with a folder's tokenizer.json.

usage: tokenizer_reference.py LLAMA_TOKENIZE OUT.json MODEL.gguf|FOLDER ...     (needs, for folders: pip install tokenizers)

Result: {file or folder name: [{"text", "ids", "plain_ids"}]}. `ids` has what the model adds by itself (BOS) and takes control
tokens in the text as such; `plain_ids`, present for GGUF files where it differs, takes them as text.
Both agree but for one thing: Qwen's tokenizer.json composes characters (NFC) first, llama.cpp does not.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

TEXTS = [
    "", " ", "  ", "\n", "\n\n\n", " \n \n", "\t\tx", "a", " a", "a ", "Hello", " Hello world", "Hello  world   ! ",
    "The water in the sea, said the child.", "the men\nof the town\r\nand   the boats\n\n\n  there",
    "I'm sure they've said it's John's; we'll see who'd go, WON'T we? I'M, YOU'RE.", "don\u2019t \u2018quote\u2019 \u201cthis\u201d \u2026 \u2014 end",
    "0 1 12 123 1234 12345 3.14159 1,000,000 2024-02-29 v1.2b3 \u0663\u0664\u00b2\u00bd\u2167", "x=1+2*(y-3)/z; if(a<=b&&c!=d){return -1;}",
    "def f(x):\n    if x > 0:\n\t\treturn x ** 2\n    # done\n\n\n", "    indented four\n        eight", "a_b-c.d@e.f/g\\h|i~j`k^l",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m stra\u00dfe \u0130stanbul", "cafe\u0301 n\u0303 \u0928\u093f \u0e01\u0e33 combining", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002\u4e2d\u6587\uff0c\u6ca1\u6709\u7a7a\u683c\uff01\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 \u2764\ufe0f", "zero\u200bwidth\u00a0nbsp\u2003em\u3000ideographic\u2028line\u0085next", "\ufefffirst",
    "\u2581already \u2581 there", "<0x41> <unk> <s> </s> [INST] hi [/INST]", "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>a<|endoftext|> b", " <|im_end|> x <|im_end|>", "<|begin|><|start|>user<|end|>\n\nhi<|eot_id|>", "<|im_start", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "https://example.org/a?b=c&d=%20#e", "!!!???...---***", "The three largest rivers of Europe, by the amount of water they carry into the sea, are the Volga,",
]


def tokenize(tool, model, text, *flags):
    with tempfile.NamedTemporaryFile("wb", suffix=".txt") as file:
        file.write(text.encode())
        file.flush()
        command = [tool, "-m", str(model), "-f", file.name, "--ids", "--log-disable", *flags]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def cases(tool, model):
    if model.is_dir():
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        yield from ({"text": text, "ids": tokenizer.encode(text).ids} for text in TEXTS)
        return
    for text in TEXTS:
        ids, plain = tokenize(tool, model, text), tokenize(tool, model, text, "--no-parse-special")
        yield {"text": text, "ids": ids} | ({} if plain == ids else {"plain_ids": plain})


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    tool, out, *models = sys.argv[1:]
    result = []
    for model in map(pathlib.Path, models):
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases(tool, model))
        result.append(f"{json.dumps(model.name)}:[\n{lines}]")
    pathlib.Path(out).write_text("{" + ",\n".join(result) + "}\n")


if __name__ == "__main__":
    main()
