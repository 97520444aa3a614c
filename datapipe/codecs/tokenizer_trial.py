"""Load a tokenizer, and encode and decode some lines with it: a script, for `codecs.tokenizer_facts`.

Standard input is a line of JSON, the texts of tokens that are asked for, and then tokenizer.json.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

_LINES = ("a", "".join(map(chr, range(32, 127))) + "\n\t", "Straße, naïve café, 東京, 😀\r\n")


class _Added(msgspec.Struct):
    id: int
    content: str


class _Stated(msgspec.Struct):
    """The added tokens as tokenizer.json states them, to compare with the library's."""

    added_tokens: list[_Added] = []


def main() -> None:
    """Print what is found, in JSON."""
    asked = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    try:
        print(json.dumps(_found(data, asked)))
    except BaseException as exc:  # a panic of the library, too
        print(json.dumps({"problem": str(exc)}))


def _found(data: bytes, asked: list[str]) -> dict[str, Any]:
    import tokenizers  # only here: the module is imported where the package may be missing

    tokenizer = tokenizers.Tokenizer.from_buffer(data)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for line in _LINES:
        found = _encoded(tokenizer, line)
        tokenizer.decode([] if found is None else found.ids)
    added = {one.content: id_ for id_, one in tokenizer.get_added_tokens_decoder().items()}
    stated = msgspec.json.decode(data, type=_Stated).added_tokens
    return {
        "largest": max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0),
        "added": added,
        "asked": {token: id_ for token in asked if (id_ := tokenizer.token_to_id(token)) is not None},
        "first": _first(tokenizer),
        "keeps_ids": all(added.get(one.content) == one.id for one in stated),
    }


def _encoded(tokenizer: Any, line: str, *, adds: bool = False) -> Any:
    """Return the encoding of a text; None if it has none."""
    try:
        return tokenizer.encode(line, add_special_tokens=adds)
    except Exception:  # the library raises nothing more special, such as for a text that its vocabulary lacks
        return None


def _first(tokenizer: Any) -> str | None:
    """Return the token that a tokenizer puts before each text."""
    found = [_encoded(tokenizer, _LINES[0], adds=adds) for adds in (True, False)]
    with_added, alone = ([] if one is None else one.tokens for one in found)
    is_put = len(alone) > 0 and with_added[1 : 1 + len(alone)] == alone and with_added[:1] != alone[:1]
    return str(with_added[0]) if is_put else None


if __name__ == "__main__":
    main()
