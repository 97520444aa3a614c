"""Tokenise texts: which tokenizer, what it adds to documents, and the two libraries that carry it out.

`tokenizers` is the reference. `fastokens` does the same for byte-level BPE many times as fast; it takes part only where it gives
the reference's ids, which is checked while it runs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.model_folder import ImageTokens, ModelFolder
from datapipe.codecs.tokenizer_facts import MAX_TOKENIZER_NBYTES, TokenizerFacts, look_at_tokenizer, panics_as_errors
from datapipe.codecs.tokens import TokenFacts, import_tokenizers
from datapipe.core.regular_files import read_bytes
from datapipe.errors import DecodeError, FormatError, IntegrityError, MissingDataError, OptionError

NONE, AUTO = "none", "auto"
_CONFIG_NAME, _TEMPLATE_NAME = "tokenizer_config.json", "chat_template.jinja"
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_MAX_TEMPLATE_NBYTES = 1 << 20  # the longest of models have 20 kB
_WHO = "--to tokens"
_REMEDY = "pass the tokenizer.json of a Hugging Face tokenizer, or the folder that holds it"


@dataclass(frozen=True, slots=True)
class Tokenizing:
    """The tokenizer of a conversion, and the tokens that it adds to each document.

    >>> tokens = Tokenizing.of(Path("tokenizer.json"), eos="<|end|>")
    >>> convert(ConvertOptions(Path("texts"), Path("tokens"), to="tokens", tokens=tokens))
    """

    path: Path  # of tokenizer.json
    facts: TokenFacts
    template: str | None = None  # of chats, in Jinja
    names: tuple[tuple[str, str], ...] = ()  # of tokens, for the template: ("bos_token", "<s>")
    keeps_ids: bool = True  # the ids that tokenizer.json states are those that the reference gives
    images: ImageTokens | None = None  # of documents with images

    @classmethod
    def of(cls, tokenizer: Path, *, bos: str = AUTO, eos: str = AUTO, chat_template: str | None = None) -> Tokenizing:
        """Return what these options mean.

        `tokenizer`: a tokenizer.json, or the folder that holds it. `bos`, `eos`: a token, "none", or "auto" for what
        the tokenizer says: the end of sequence that tokenizer_config.json names is added to each document, and so is the
        beginning that the tokenizer puts before a text; neither to chats, whose template has them. `chat_template`: a file, or
        "auto" for the tokenizer's own.
        Raises MissingDataError, FormatError, OptionError, DependencyError.
        """
        path = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        data, config = _read(path), _config(path.with_name(_CONFIG_NAME))
        template = None if chat_template is None else _template(path, config, chat_template)
        if template is not None:
            bos, eos = (NONE if one == AUTO else one for one in (bos, eos))
        named = {name: token for name in _NAMES if (token := _named(config.get(name))) is not None}
        names = tuple(sorted(named.items()))
        found = _looked(data, path, (*named.values(), bos, eos))
        facts = TokenFacts(
            dtype="uint16" if found.largest < 1 << 16 else "uint32",
            vocab_size=found.largest + 1,
            bos=_token(found, path, "bos", bos, _first(found, config)),
            eos=_token(found, path, "eos", eos, named.get("eos_token")),
            pad=found.asked.get(named.get("pad_token", "")),
            tokenizer_sha256=hashlib.sha256(data).hexdigest(),
            template_sha256="" if template is None else hashlib.sha256(repr((template, names)).encode()).hexdigest(),
        )
        return cls(path.absolute(), facts, template, () if template is None else names, found.keeps_ids)

    def with_images(self) -> Tokenizing:
        """Return the same, of documents with images, whose tokens the configuration beside the tokenizer says.

        Raises MissingDataError, FormatError or OptionError for the folder of a model that takes none, or is not known.
        """
        images = ModelFolder(self.path.parent).image_tokens
        found = _looked(self.read(), self.path, (images.token,))
        if images.token not in found.added:
            raise FormatError(f"{self.path}: has no special token {images.token!r}, which stands for images; get the model again")
        return replace(self, images=images, facts=replace(self.facts, image=found.added[images.token]))

    def read(self) -> bytes:
        """Return tokenizer.json. Raises IntegrityError if it is not the one with which the conversion began."""
        data = _read(self.path)
        if hashlib.sha256(data).hexdigest() != self.facts.tokenizer_sha256:
            raise IntegrityError(f"{self.path}: is not the tokenizer with which the conversion began; put that one back")
        return data


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, at_most=MAX_TOKENIZER_NBYTES)
    except FileNotFoundError as exc:
        raise MissingDataError(f"--tokenizer {path}: no such file; {_REMEDY}") from exc
    except OSError as exc:
        raise MissingDataError(f"--tokenizer {path}: cannot be read ({exc.strerror}); {_REMEDY}") from exc


def _config(path: Path) -> dict[str, Any]:
    """Return what lies beside a tokenizer; {} if nothing does."""
    try:
        found = json.loads(read_bytes(path, at_most=MAX_TOKENIZER_NBYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as exc:
        raise FormatError(f"{path}: not JSON ({exc}); repair it, or move it away") from exc
    return found if isinstance(found, dict) else {}


def _template(path: Path, config: dict[str, Any], asked: str) -> str:
    """Return the text of a chat template. Raises MissingDataError or OptionError if there is none."""
    own = path.with_name(_TEMPLATE_NAME)
    if asked != AUTO or own.exists():
        where = own if asked == AUTO else Path(asked)
        try:
            return read_bytes(where, at_most=_MAX_TEMPLATE_NBYTES).decode()
        except FileNotFoundError as exc:
            raise MissingDataError(f"--chat-template {where}: no such file; pass a file of Jinja, or auto") from exc
        except (OSError, UnicodeDecodeError) as exc:
            raise FormatError(f"--chat-template {where}: cannot be read as UTF-8 ({exc}); pass a file of Jinja, or auto") from exc
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"), None)
    if not isinstance(found, str):
        raise OptionError(f"--chat-template auto: nothing beside {path} has a chat template; pass a file of Jinja")
    if len(found) > _MAX_TEMPLATE_NBYTES:
        raise FormatError(f"--chat-template auto: {len(found)} characters, more than the limit of {_MAX_TEMPLATE_NBYTES}")
    return found


def _named(token: Any) -> str | None:
    """Return a token of a configuration, which is a text, or an object with one."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _looked(data: bytes, path: Path, tokens: tuple[str, ...]) -> TokenizerFacts:
    try:
        return look_at_tokenizer(data, tokens, _WHO)
    except FormatError as exc:
        raise _no_tokenizer(str(path), exc) from exc


def _no_tokenizer(where: str, exc: BaseException) -> FormatError:
    return FormatError(f"--tokenizer {where}: no tokenizer ({str(exc).splitlines()[0]:.120}); {_REMEDY}")


def _first(found: TokenizerFacts, config: dict[str, Any]) -> str:
    """Return the token that a tokenizer puts before each text: as its configuration says, else as the tokenizer does."""
    says = config.get("add_bos_token")
    first = found.first if says is None else _named(config.get("bos_token")) if says else None
    return NONE if first is None else first


def _token(found: TokenizerFacts, path: Path, name: str, asked: str, known: str | None) -> int | None:
    """Return the id of a token that documents get; None if they get none. Raises OptionError if that is not known."""
    token = known if asked == AUTO else asked
    if token is None:
        raise OptionError(
            f"--{name}: nothing beside {path} says which token ends a document; pass --{name} TOKEN, such as '<|endoftext|>',"
            " or none"
        )
    if token == NONE:
        return None
    id_ = found.added.get(token, found.asked.get(token))
    if id_ is None or (found.added and token not in found.added):
        what = "no token" if id_ is None else f"a token of ordinary text (id {id_})"
        shown = ", ".join(f"{one!r:.40}" for one in list(found.added)[:4])
        raise OptionError(
            f"--{name} {token!r:.40}: {what} of {path}; pass a special token of it ({shown or 'it has none'}), or none"
        )
    return id_


# Of no word: those of Unicode's private use, and Byzantine musical symbols for normalizers that drop the former.
MARKS = [chr(code) for first in (0xE000, 0x1D000) for code in range(first, first + 0xF0)]


@dataclass(frozen=True, slots=True)
class Renamed:
    """A tokenizer whose special tokens have other names."""

    tokenizer: Any
    ids: NDArray[np.uint32]  # the original's, by those of this one
    special: frozenset[int]  # of its own ids


def are_words(tokenizer: Any) -> bool:
    """Return True for a tokenizer that finds the pieces or words of its vocabulary in a text, among them special tokens."""
    return type(tokenizer.model).__name__ != "BPE"


def special_tokens_of(tokenizer: Any) -> dict[int, Any]:
    """Return the added tokens that are special, by id."""
    return {id_: one for id_, one in tokenizer.get_added_tokens_decoder().items() if one.special}


def renamed(tokenizer: Any, mark: str) -> Renamed:
    """Return a copy of Hugging Face's tokenizer in whose special tokens' names a mark lies at both ends."""
    names = {one.content: mark + one.content + mark for one in special_tokens_of(tokenizer).values()}
    document = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"]) if token["special"] else token["content"]
    model = document["model"]
    if isinstance(model["vocab"], list):  # Unigram's, whose pieces are found in any text
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    elif "merges" not in model:  # words, likewise
        model["vocab"] = {names.get(word, word): id_ for word, id_ in model["vocab"].items()}
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    copy = type(tokenizer).from_str(json.dumps(document))
    originals = {name: content for content, name in names.items()}
    added = {id_: one.content for id_, one in copy.get_added_tokens_decoder().items()}
    ids = np.arange(max(copy.get_vocab(with_added_tokens=True).values()) + 1, dtype=np.uint32)
    for id_, content in added.items():
        ids[id_] = tokenizer.token_to_id(originals.get(content, content))
    return Renamed(copy, ids, frozenset(id_ for id_, content in added.items() if content in originals))


# Returns the ids of each text, without further tokens; what looks like a special token is text. Raises DecodeError for a text
# that has no ids. For one thread.
Encoder = Callable[[Sequence[str]], list[NDArray[np.uint32]]]


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise DecodeError for a text that the reference has no tokens for, or panics at."""
    try:
        with panics_as_errors():
            yield
    except Exception as exc:  # the library raises nothing more special
        raise DecodeError(f"the tokenizer refuses it: {str(exc).splitlines()[0]:.120}") from exc


def open_tokenizer(tokenizing: Tokenizing) -> Any:
    """Return Hugging Face's own object for a tokenizer, without truncation and padding."""
    tokenizers = import_tokenizers(_WHO)
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(tokenizing.read())
    except Exception as exc:  # the library raises nothing more special
        raise _no_tokenizer(str(tokenizing.path), exc) from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _ids_of_unknown(tokenizer: Any) -> list[int]:
    """Return the ids of a character that is in no vocabulary."""
    try:
        ids: list[int] = tokenizer.encode(MARKS[0], add_special_tokens=False).ids
    except Exception:  # a vocabulary without an unknown token; the library raises nothing more special
        return []
    return ids


@functools.lru_cache(maxsize=2)
def open_reference(tokenizing: Tokenizing) -> Encoder:
    """Return the reference for a tokenizer, opened once in a process."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # workers are processes, one a core
    tokenizer = open_tokenizer(tokenizing)
    tokenizer.encode_special_tokens = True

    def encode(texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        with refusals():
            found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.uint32) for one in found]

    return _without_names(tokenizer, encode) if are_words(tokenizer) else encode


def _without_names(tokenizer: Any, encode: Encoder) -> Encoder:
    """Return an encoder for which the name of a special token is text, where for `encode` it is a word of the vocabulary."""
    special = {id_: one.content for id_, one in special_tokens_of(tokenizer).items()}
    unknown = {id_: special[id_] for id_ in _ids_of_unknown(tokenizer) if id_ in special}  # it also stands for other words
    telling = [id_ for id_ in special if id_ not in unknown]
    renamed_with = functools.lru_cache(maxsize=1)(functools.partial(renamed, tokenizer))

    def encode_all(texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        return [encode_mention(text, ids) for text, ids in zip(texts, encode(texts), strict=True)]

    def encode_mention(text: str, ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        if not np.isin(ids, telling).any() and not any(name in text for name in unknown.values()):
            return ids
        mark = next((one for one in MARKS if one not in text), None)
        if mark is None:
            raise DecodeError("it uses all characters that could keep special tokens in it apart")
        other = renamed_with(mark)
        with refusals():
            return other.ids[np.array(other.tokenizer.encode(text, add_special_tokens=False).ids, np.int64)]

    return encode_all if special else encode


@functools.lru_cache(maxsize=2)
def open_fast(tokenizing: Tokenizing) -> Encoder | None:
    """Return the faster encoder, opened once in a process; None if it is not installed, or does not take this tokenizer."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # workers are processes, one a core
    try:
        import fastokens
    except ImportError:
        return None
    if not tokenizing.keeps_ids:  # it takes the ids from the file
        return None
    data = tokenizing.read().decode()
    try:
        with panics_as_errors():
            tokenizer = fastokens.Tokenizer.from_json_str(data)
            tokenizer.no_truncation()
            tokenizer.no_padding()
    except Exception:  # whatever it does not take is left to the reference
        return None

    def encode(texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        data, ends = tokenizer.encode_batch_flat(list(texts), add_special_tokens=False, split_special_tokens=True)
        bounds = np.frombuffer(ends, np.uint64).astype(np.int64)
        ids = np.frombuffer(data, np.uint32)
        return [ids[start:end] for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]

    return encode
