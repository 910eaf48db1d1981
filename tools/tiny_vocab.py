"""Tiny vocabularies for test checkpoints, learned from a short text so that every merge can be reached.

A vocabulary is a dict of what a GGUF file's `tokenizer.*` metadata holds; the same data makes a tokenizer.json.
"""
import re
from collections import Counter

TEXT = """The small model reads a line of text and says which word it thinks will come next. It has read very little,
so it is often wrong, but it is wrong in the same way every time, and that is what a test needs. When the weather
is fine the men of the town go down to the water and look at the boats there. One of them has a red sail, another
has none at all and is rowed by two brothers who never talk. They were asked once why they do not talk, and the
older one said that everything there was to say about the sea had been said before them. The other one nodded,
and then they rowed on. In the evening the boats return with the tide, the nets are hung between the houses, and
the children count the fish: one, two, three, four, and so on until they are called in for their supper. A stranger
who was standing there wanted to know how many fish there were in the water. That depends, said the oldest child,
on whether you want to count those which are coming in or those which are going out. The stranger thought about
that for some time. What is the number for the ones that are going out? he asked. The child looked at the sea and
then at him and said: the same number, later."""

CHAT_TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                 "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
LLAMA3_TEMPLATE = ("{{ bos_token }}{% for message in messages %}{{ '<|start|>' + message['role'] + '<|end|>\\n\\n' + "
                   "message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
                   "{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{% endif %}")
INST_TEMPLATE = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
                 "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
                 "{{ message['content'] + eos_token }}{% else %}"
                 "{{ raise_exception('only user and assistant can speak') }}{% endif %}{% endfor %}")

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def byte_characters():
    """The printable character that stands for each byte in byte-level BPE, in the order of the ids."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(0x100 + i) for i, byte in enumerate(rest)}}


def learn_merges(words, count):
    """The `count` most frequent joins of neighbouring symbols, one after the other; ties go to the smaller pair."""
    words = Counter({tuple(word): n for word, n in Counter(words).items()})
    merges = []
    while len(merges) < count:
        pairs = Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += n
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append((left, right))
        joined = Counter()
        for word, n in words.items():
            out = []
            for symbol in word:
                if out and (out[-1], symbol) == (left, right):
                    out[-1] = left + right
                else:
                    out.append(symbol)
            joined[tuple(out)] += n
        words = joined
    return merges


def byte_level(size, pre, before=(), after=(), **special):
    """A gpt2-style vocabulary of `size` ids: control tokens `before`, the bytes, merges, control tokens `after`."""
    characters = byte_characters()
    words = ["".join(characters[byte] for byte in word.encode())
             for word in re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z0-9]+", TEXT)]
    merges = learn_merges(words, size - 256 - len(before) - len(after))
    tokens = [*before, *characters.values(), *(left + right for left, right in merges), *after]
    assert len(set(tokens)) == size
    types = [CONTROL if token in (*before, *after) else NORMAL for token in tokens]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "types": types,
            "merges": [f"{left} {right}" for left, right in merges], "special": special,
            "template": CHAT_TEMPLATE, "add_bos": False}


def sentence_piece(size):
    """A SentencePiece-style BPE vocabulary of `size` ids: control tokens, byte tokens, merged pieces, characters."""
    words = [word.replace(" ", "\u2581") for word in re.findall(r" ?[A-Za-z]+|[^\sA-Za-z0-9]+", " " + " ".join(TEXT.split()))]
    characters = sorted(set("".join(words)))
    merges = learn_merges(words, size - 259 - len(characters))
    pieces = [*(left + right for left, right in merges), *characters]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    assert len(set(tokens)) == size
    return {"model": "llama", "tokens": tokens, "types": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
            "scores": [0.0] * 259 + [float(-rank) for rank in range(len(pieces))],
            "special": {"unknown": 0, "bos": 1, "eos": 2}, "template": INST_TEMPLATE, "add_bos": True}


def tokenizer_json(vocab):
    """The tokenizer.json of a byte-level vocabulary with Qwen's way of splitting words."""
    ids = {token: i for i, token in enumerate(vocab["tokens"])}
    control = [token for token, kind in zip(vocab["tokens"], vocab["types"]) if kind == CONTROL]
    split = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
             r"|\s+(?!\S)|\s+")
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for token in control],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for token, i in ids.items() if token not in control},
                  "merges": vocab["merges"]},
    }
