"""A tokenizer.json that would end this process, or fill its memory, does so in another one, and is refused in a line."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from datapipe.codecs import tokenizer_facts
from datapipe.codecs.tokenizer_facts import look_at_tokenizer
from datapipe.errors import FormatError


def document(**members: Any) -> dict[str, Any]:
    """A tokenizer of bytes, in which these members are others."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: id_ for id_, one in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return {**json.loads(tokenizer.to_str()), **members}


def look(document: dict[str, Any]) -> tokenizer_facts.TokenizerFacts:
    return look_at_tokenizer(json.dumps(document).encode(), ("a", "b", "absent"), "a test")


PADDING = {
    "strategy": {"Fixed": 4_000_000_000}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
    "pad_token": "<s>",
}  # fmt: skip
TRUNCATION = {"max_length": 1, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}


@pytest.mark.parametrize("kept", [{}, {"padding": PADDING}, {"truncation": TRUNCATION}])
def test_what_is_found_whatever_padding_and_truncation_were_saved(kept: dict[str, Any]) -> None:
    found = look(document(**kept))
    assert (found.first, found.largest, found.added) == ("<s>", 257, {"<s>": 256, "</s>": 257})
    assert found.asked == {"a": 64, "b": 65}
    assert found.keeps_ids


def replacing(pattern: str, content: str, times: int) -> dict[str, Any]:
    one = {"type": "Replace", "pattern": {"String": pattern}, "content": content}
    return {"type": "Sequence", "normalizers": [one] * times}


def precompiled(data: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a replacement that grows": ({"normalizer": replacing("a", "a" * 1000, 5)}, "ends its process by SIGABRT: memory allocation"),
    "an empty replacement": ({"normalizer": replacing("", "xx", 1)}, "index out of bounds"),
    "a normalizer that is cut": (
        {"normalizer": precompiled(b"\xff\xff\xff\x7fabcd")},
        "ends its process by SIGABRT: memory allocation",
    ),
    "a normalizer that leads out": ({"normalizer": precompiled(b"\x04\0\0\0" + b"\xff" * 4)}, "index out of bounds"),
    "no tokenizer": ({"model": None}, "Cannot instantiate Tokenizer"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_tokenizer_that_ends_a_process_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_facts, "_NBYTES", 512 << 20)
    members, said = HOSTILE[name]
    with pytest.raises(FormatError, match=said) as raised:
        look(document(**members))
    assert "\n" not in str(raised.value)


def test_ids_that_no_model_has_and_that_the_file_states_otherwise() -> None:
    made = document()
    made["model"]["vocab"]["zz"] = (1 << 32) - 1
    with pytest.raises(FormatError, match="it has the id 4294967295, and no model has so many"):
        look(made)
    made = document()
    made["added_tokens"][1]["id"] = (1 << 32) - 1
    found = look(made)
    assert (found.largest, found.added["</s>"], found.keeps_ids) == (257, 257, False)
