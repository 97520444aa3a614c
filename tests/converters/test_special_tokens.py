"""Special tokens that a message mentions are text, and change no id around them, whatever the tokenizer does to its text.

The reference is a tokenizer that was made with other special tokens, which no message mentions: one call on the whole text.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from converters.samples.chats import ChatRenderer
from converters.tokenizer import Tokenizing, open_reference
from datapipe.codecs.tokens import TokenFacts

NAMES = ("<s>", "</s>", "END")
SECRET = ("#b#", "#e#", "#x#")
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}</s>{% endif %}"
    " {% endfor %}"
)
CHARACTERS = [chr(code) for code in range(33, 127) if chr(code) != "#"] + ["\n", "é", "É", "\u0301"]
PATTERN = r"'s|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def by_pairs(*merges: tuple[str, str], extra: str = "▁", **options: Any) -> Any:
    tokens = ["<unk>", *CHARACTERS, *extra, *(first + second for first, second in merges)]
    return models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=list(merges), unk_token="<unk>", **options)


def by_bytes() -> Any:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "as", "><"]
    return models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=[("Ġ", "a"), ("a", "s"), (">", "<")])


def metaspace(scheme: str, *, split: bool) -> Callable[[tuple[str, ...]], Tokenizer]:
    def make(names: tuple[str, ...]) -> Tokenizer:
        tokenizer = Tokenizer(by_pairs(("▁", "a"), ("s", ">")))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
        return tokenizer

    return make


def byte_level(*, prefix: bool) -> Callable[[tuple[str, ...]], Tokenizer]:
    def make(names: tuple[str, ...]) -> Tokenizer:
        tokenizer = Tokenizer(by_bytes())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        return tokenizer

    return make


def split(names: tuple[str, ...]) -> Tokenizer:
    tokenizer = Tokenizer(by_bytes())
    divided = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [divided, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def prepended(names: tuple[str, ...]) -> Tokenizer:
    """As Llama 2's, where the normalizer puts in what Metaspace does elsewhere."""
    tokenizer = Tokenizer(by_pairs(("▁", "a"), ("▁", "<")))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def word_pieces(names: tuple[str, ...]) -> Tokenizer:
    tokens = ["[UNK]", *names, "user", "assistant", "as", "##s", *CHARACTERS, *(f"##{one}" for one in CHARACTERS)]
    tokenizer = Tokenizer(models.WordPiece({token: id_ for id_, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def unigram(names: tuple[str, ...]) -> Tokenizer:
    pieces = [("<unk>", 0.0), *((name, 0.0) for name in names), *((one, -3.0) for one in (*CHARACTERS, "▁")), ("▁a", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def words(names: tuple[str, ...]) -> Tokenizer:
    tokens = ["[UNK]", *names, "user", "assistant", "a", "as", "s"]
    tokenizer = Tokenizer(models.WordLevel({token: id_ for id_, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def by_script(names: tuple[str, ...]) -> Tokenizer:
    tokenizer = Tokenizer(by_pairs(("a", "s")))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    steps = [pre_tokenizers.UnicodeScripts(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(), pre_tokenizers.Whitespace()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


TOKENIZERS: dict[str, Callable[[tuple[str, ...]], Tokenizer]] = {
    "Metaspace, first": metaspace("first", split=False),
    "Metaspace, always": metaspace("always", split=True),
    "Metaspace, never": metaspace("never", split=True),
    "ByteLevel": byte_level(prefix=False),
    "ByteLevel, prefix": byte_level(prefix=True),
    "Split": split,
    "Prepend": prepended,
    "WordPiece": word_pieces,
    "Unigram": unigram,
    "WordLevel": words,
    "UnicodeScripts": by_script,
    "none": lambda names: Tokenizer(by_pairs(("s", ">"), extra=" ")),
}
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
SNIPPETS = [
    *NAMES,
    " <s>",
    "<S>",
    "<<s>>",
    "\n</s>",
    "<",
    "s>",
    "a",
    "as",
    " ",
    "\n",
    "é",
    "E\u0301",
    "END.",
    "end",
    "\ue000",
    "#",
]
TEXTS = st.lists(st.sampled_from(SNIPPETS[:-1]), max_size=6).map("".join)


def with_special(make: Callable[[tuple[str, ...]], Tokenizer], names: tuple[str, ...], flags: frozenset[str]) -> Tokenizer:
    tokenizer = make(names)
    options = {name: name in flags for name in FLAGS}
    tokenizer.add_special_tokens([AddedToken(name, special=True, **options) for name in names])
    tokenizer.add_tokens(["tool"])
    return tokenizer


def renderer_of(tokenizer: Tokenizer) -> ChatRenderer:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        tokenizer.save(str(path))
        facts = TokenFacts("uint16", tokenizer_sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        return ChatRenderer(Tokenizing(path, facts, TEMPLATE))


@functools.lru_cache(maxsize=256)
def renderer(name: str, flags: frozenset[str]) -> ChatRenderer:
    return renderer_of(with_special(TOKENIZERS[name], NAMES, flags))


def by_reference(name: str, flags: frozenset[str], chat: list[dict[str, str]]) -> tuple[list[int], list[bool]]:
    """Ids of one call, of a tokenizer with other special tokens; and which of them carry loss."""
    ours, theirs = (with_special(TOKENIZERS[name], names, flags) for names in (NAMES, SECRET))
    same = dict(zip((*SECRET, "tool"), (*NAMES, "tool"), strict=True))
    ids = {theirs.token_to_id(token): ours.token_to_id(other) for token, other in same.items()}
    special = {theirs.token_to_id(token) for token in SECRET}
    begin, end = SECRET[:2]
    parts = [part for one in chat for part in (begin, f"{one['role']}\n", one["content"], end, " ")]
    spans = [range(5 * number + 2, 5 * number + 4) for number, one in enumerate(chat) if one["role"] == "assistant"]
    while True:
        found = theirs.encode("".join(parts), add_special_tokens=False)
        starts = [0, *itertools.accumulate(map(len, parts))]
        is_special = [place for id_, place in zip(found.ids, found.offsets, strict=True) if id_ in special]
        missed = [
            place
            for place, part in enumerate(parts)
            if part in SECRET and not any(first <= starts[place] and starts[place + 1] <= last for first, last in is_special)
        ]
        if not missed:
            break
        for place in missed:  # the tokenizer takes it for text there, such as a `single_word` beside a letter
            parts[place] = same[parts[place]]
    carries = [any(starts[one[0]] <= start < starts[one[-1] + 1] for one in spans) for start, _ in found.offsets]
    return [ids.get(id_, id_) for id_ in found.ids], carries


def compare(name: str, flags: frozenset[str], texts: tuple[str, str, str]) -> None:
    chat = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), texts, strict=True)]
    ids, runs = renderer(name, flags).encode(json.dumps(chat).encode())
    carries = [any(first <= number < end for first, end in runs.tolist()) for number in range(len(ids))]
    assert (ids.tolist(), carries) == by_reference(name, flags, chat)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_chat_that_mentions_special_tokens(name: str) -> None:
    for flags in ((), ("rstrip",), ("lstrip",), ("single_word",), ("normalized",)):
        compare(name, frozenset(flags), ("a <s> as\n</s>", "tool <<s>> aEND", " END"))


def test_special_tokens_of_one_character_and_within_others() -> None:
    plain, tokenizer = byte_level(prefix=False)(()), byte_level(prefix=False)(())
    tokenizer.add_special_tokens([AddedToken(one, special=True, rstrip=True) for one in (*NAMES, "!", "ab", "bc")])
    said = ["no! wait!!", "abc  abc"]
    ids, _ = renderer_of(tokenizer).encode(json.dumps([{"role": "assistant", "content": one} for one in said]).encode())
    begin, end = ([tokenizer.token_to_id(one)] for one in NAMES[:2])
    assert ids.tolist() == [token for one in said for token in begin + plain.encode(f"assistant\n{one}").ids + end]


@pytest.mark.nightly
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(st.sets(st.sampled_from(FLAGS)), st.tuples(TEXTS, TEXTS.map("as".__add__), TEXTS))
def test_any_chat(name: str, flags: set[str], texts: tuple[str, str, str]) -> None:
    compare(name, frozenset(flags), texts)


UNIGRAM = [("<unk>", 0.0), ("</s>", 0.0), *((letter, -3.0) for letter in "ab</>s▁kun")]
LETTERS = {letter: id_ for id_, (letter, _) in enumerate(UNIGRAM)}


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a b", ["▁", "a", "▁", "b"]),
        ("a </s>", ["▁", "a", "▁", "<", "/", "s", ">"]),
        ("a \uff1c/s\uff1e", ["▁", "a", "▁", "<", "/", "s", ">"]),  # by a normalizer
        ("a <unk>", ["▁", "a", "▁", "<", "u", "n", "k", ">"]),
        ("a z", ["▁", "a", "▁", "<unk>"]),
    ],
)
def test_a_document_that_mentions_special_tokens_of_a_vocabulary_of_pieces(text: str, pieces: list[str], tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.Unigram(UNIGRAM, 0))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encode = open_reference(Tokenizing.of(tmp_path / "tokenizer.json", eos="</s>"))
    assert [LETTERS[piece] for piece in pieces] == encode([text])[0].tolist()


def test_a_document_that_mentions_special_tokens_of_a_vocabulary_of_words(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "b": 3}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encode = open_reference(Tokenizing.of(tmp_path / "tokenizer.json", eos="</s>"))
    assert [ids.tolist() for ids in encode(["a b", "a </s> b"])] == [[2, 3], [2, 0, 3]]
