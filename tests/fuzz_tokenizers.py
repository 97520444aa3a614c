"""What `fuzz` looks at of tokenizers and chat templates: they are refused, or encode documents and chats within their limits."""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np
from fuzz_tables import tamper_json
from tokenizers_of_tests import CHATML, CHATML_WITH_BLOCKS, TEXTS, byte_level, word_pieces

from converters.samples.chats import ChatRenderer
from converters.samples.templates import refuse_template
from converters.samples.tokenising import open_encoder
from converters.tokenizer import Tokenizing
from datapipe.errors import DecodeError

_CHATS = [
    [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A <|im_end|> of text."}] * num
    for num in (1, 3)
]
# What people and attackers write into templates.
_SNIPPETS = (
    "{% for i in range(99999) %}", "{% for i in range(messages|length ** 40) %}", "{% endfor %}", "{{ messages }}", "{% raw %}",
    "{{ 'x' * 9999999999 }}", "{{ 9 ** 99999 }}", "{{ messages|length ** messages|length }}",
    "{{ ('%' ~ 9999999999 ~ 'd') % 1 }}", "{% if messages|length > 4 %}", "{% endif %}", "{{ raise_exception('no') }}",
    "{{ '{:>999999999}'.format(1) }}", "{{ ", "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{# ", "%}", "{% set ns = namespace(x=messages) %}",
    "{{ messages|join('x' * 99999) }}", "{{ cycler.__init__.__globals__ }}", "{% break %}",
    "{{ messages|tojson|center(999999999) }}", "{% generation %}", "{% endgeneration %}", "{{ '\ud83d\ude00' * 9 }}",
)  # fmt: skip


@functools.cache
def _folder(make_name: str) -> Path:
    """A tokenizer and its configuration, for as long as the process lives."""
    make = {"byte_level": byte_level, "word_pieces": word_pieces}[make_name]
    return make(Path(tempfile.mkdtemp(prefix="fuzz-tokenizer-"))).parent


def tokenizer_files() -> list[bytes]:
    return [(_folder(name) / "tokenizer.json").read_bytes() for name in ("byte_level", "word_pieces")]


def tamper_tokenizer(data: bytearray) -> None:
    tamper_json(data, tokenizer_files()[0])


def look_at_tokenizer(data: bytes, scratch: Path) -> object:
    folder = scratch.with_name(f"{scratch.name}-tokenizer")
    shutil.copytree(_folder("byte_level"), folder, dirs_exist_ok=True)
    (folder / "tokenizer.json").write_bytes(data)
    tokenizing = Tokenizing.of(folder)
    found = open_encoder(tokenizing)([*TEXTS[:4], "", "a" * 1000])
    for ids in found:
        assert len(ids) <= 20_000
        assert int(ids.max(initial=0)) < 1 << 28
    return found


def template_files() -> list[bytes]:
    return [CHATML.encode(), CHATML_WITH_BLOCKS.encode()]


def add_snippets(data: bytearray) -> None:
    """Put statements where others begin or end."""
    rng = random.Random(zlib.crc32(data))
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = [0, *(place for place in range(len(data)) if data[place : place + 1] == b"{" or data[place - 1 : place] == b"}")]
        place = rng.choice(places)
        data[place:place] = rng.choice(_SNIPPETS).encode(errors="surrogatepass")


def look_at_template(data: bytes, scratch: Path) -> object:
    path = scratch.with_suffix(".jinja")
    path.write_bytes(data)
    tokenizing = Tokenizing.of(_folder("byte_level"), chat_template=str(path))
    refuse_template(tokenizing)
    found = ChatRenderer(tokenizing).encode_each(json.dumps(chat).encode() for chat in _CHATS)
    for one in found:
        if not isinstance(one, DecodeError):
            ids, runs = one
            assert (np.diff(runs.ravel()) > 0).all()
            assert 0 <= runs.min(initial=0) <= runs.max(initial=0) <= len(ids)
    return found
