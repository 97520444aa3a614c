"""Batches of conversations: what transformers makes of them, packed, so that each conversation stays by itself."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
import torch
from conversation_sets import END, FIRST, IMAGE, PAD, START, STOP, picture, words_model, write_set
from fixtures import mostly_nightly
from PIL import Image
from stand_in_stores import BUCKET, moto_store, needs_moto, upload
from vision_models import FAMILIES, TEMPLATES, model_folder, text_processor

import datapipe as dp
from converters import ConvertOptions, convert
from converters.tokenizer import Tokenizing
from datapipe.errors import DecodeError, MissingDataError, OptionError, StateError
from datapipe.processors.reading import read_processor

NESTED = ("idefics3", "idefics3_whole", "gemma3")  # whose processors take a list of images for each text
SIZES = ((120, 90), (60, 200), (33, 31), (251, 196), (28, 28), (300, 40))
ALL = ["input_ids", "labels", "position_ids", "pixel_values", "image_grid_thw", "loss_tokens", "document_ids", "id"]


def chats(num: int = 12) -> list[tuple[list[bytes], str, str]]:
    """Pictures, a question, an answer; none of a picture, and several."""
    found = []
    for number in range(num):
        sizes = list(itertools.islice(itertools.cycle(SIZES), number, number + number % 4))
        pictures = [picture(*size, seed=number, form="JPEG" if number % 2 else "PNG") for size in sizes]
        found.append((pictures, f"What is {number}?", "A dog that waits." * (1 + number % 3)))
    return found


def write_chats(path: Path, model: Path) -> Path:
    """Convert them, in their order."""
    source = path.with_name(f"{path.name}-source")
    source.mkdir(parents=True)
    lines = []
    for number, (pictures, question, answer) in enumerate(chats()):
        names = [f"{number}-{place}" for place in range(len(pictures))]
        for name, data in zip(names, pictures, strict=True):
            (source / name).write_bytes(data)
        turns = [{"from": "human", "value": "<image>\n" * len(names) + question}, {"from": "gpt", "value": answer}]
        lines.append({"conversations": turns, "image": names})
    (source / "chats.json").write_text(json.dumps(lines))
    tokens = Tokenizing.of(model, chat_template="auto")
    convert(
        ConvertOptions(source / "chats.json", path, to="tokens", tokens=tokens, seed=None, num_workers=1, shard_nbytes=99_999)
    )
    return path


def rendered(family: str, num_images: int, question: str, answer: str) -> str:
    asked = [*[{"type": "image"}] * num_images, {"type": "text", "text": question}]
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": [{"type": "text", "text": answer}]}]
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATES[family])
    return template.render(messages=messages, add_generation_prompt=False)


@pytest.mark.parametrize("family", mostly_nightly(FAMILIES, "qwen", "gemma3"))
def test_batches_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Ids and grids exactly, pixels bit for bit, for conversations with any number of images."""
    if family.startswith("idefics3") and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("this torch has no Lanczos filter")
    model = model_folder(tmp_path / "model", family)
    theirs = text_processor(model, family)
    data = dp.Conversations(write_chats(tmp_path / "shards", model), 4096, model, packing="pad")
    for (pictures, question, answer), batch in zip(chats(), dp.DataLoader(data, 1, num_workers=1), strict=True):
        images: Any = [Image.open(io.BytesIO(one)).convert("RGB") for one in pictures]
        text = rendered(family, len(images), question, answer)
        given = None if not images else [images] if family in NESTED else images
        expected = theirs(text=[text], images=given, return_tensors="pt")
        assert torch.equal(batch["input_ids"], expected["input_ids"])
        for name in ("pixel_values", "image_grid_thw", "token_type_ids"):
            if name in batch and name in expected:
                assert torch.equal(batch[name], expected[name]), name
        if not pictures:
            assert batch["pixel_values"] is None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_model(tmp_path_factory.mktemp("words") / "model")


def of_words(num: int) -> list[list[int | bytes]]:
    """Documents of words, and of a picture or two in each second one."""
    found: list[list[int | bytes]] = []
    for number in range(num):
        words: list[int | bytes] = [number, *range(number % 5)]
        if number % 2:
            words.insert(number % 3, picture(30 + 3 * number, 40, seed=number))
            words += [picture(28, 28 + number, seed=number), number]
        found.append(words)
    return found


@pytest.fixture(scope="module")
def documents(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("documents") / "shards", of_words(40), model, shard_nbytes=50_000)


def expected_ids(words: list[int | bytes], model: Path) -> list[int]:
    """By the arithmetic of the processor alone."""
    processor, found = read_processor(model), []
    for one in words:
        if not isinstance(one, bytes):
            found.append(FIRST + one)
            continue
        size = Image.open(io.BytesIO(one)).size
        (grid,) = processor.grids(*(np.array([side]) for side in size))
        found += [START, *[IMAGE] * (int(grid.prod()) // 4), STOP]
    return [*found, END]


@pytest.mark.parametrize("packing", ["best-fit", "pad"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_rows_hold_whole_conversations(documents: Path, model: Path, packing: Any, batch_size: int) -> None:
    """Each once, with positions of its own, labels but for its first token and its images, and its pixels."""
    data = dp.Conversations(documents, 64, model, packing=packing, fields=ALL)
    expected = [expected_ids(words, model) for words in of_words(40)]
    processor, found, losses = read_processor(model), [], 0
    for batch in dp.DataLoader(data, batch_size, shuffle=True, seed=1):
        units = batch["pixel_values"] if batch["pixel_values"] is not None else torch.zeros(0, 1176)
        assert int((batch["labels"] != -100).sum()) == batch["loss_tokens"]
        losses += batch["loss_tokens"]
        for row, ids in enumerate(batch["input_ids"]):
            numbers = batch["document_ids"][row]
            for number in range(int(numbers.max()) + 1):
                at = numbers == number
                mine = ids[at].tolist()
                found.append(mine)
                labels = batch["labels"][row, at].tolist()
                assert labels == [-100, *(-100 if one == IMAGE else one for one in mine[1:])]
                assert batch["position_ids"][0, row, at].tolist() == list(range(len(mine)))
                for part in of_words(40)[expected.index(mine)]:
                    if isinstance(part, bytes):
                        pixels = np.asarray(Image.open(io.BytesIO(part)))
                        (grid,) = processor.grids(*(np.array([side]) for side in pixels.shape[1::-1]))
                        placed = torch.zeros(int(grid.prod()), *processor.unit, dtype=torch.uint8)
                        processor.place(pixels, *grid.tolist(), placed)
                        assert torch.equal(units[: len(placed)], processor.values(placed))
                        units = units[len(placed) :]
            assert (ids[numbers < 0] == PAD).all()
        assert not len(units)
    assert sorted(found) == sorted(expected)
    assert losses == sum(len(one) - 1 - one.count(IMAGE) for one in expected)


def test_shifted_labels_are_the_next_tokens_of_the_same(documents: Path, model: Path) -> None:
    same, shifted = (
        [*dp.DataLoader(dp.Conversations(documents, 64, model, labels=labels, layout="flat"), 2, num_workers=0)]
        for labels in ("same", "shifted")
    )
    for one, other in zip(same, shifted, strict=True):
        assert one["input_ids"].shape == (1, one["input_ids"].numel())
        assert torch.equal(one["labels"][0, 1:], other["labels"][0, :-1])
        assert int(other["labels"][0, -1]) == -100


def tiny_model(model: Path) -> Any:
    """Qwen2-VL of random weights, in the middle of a training: without a cache."""
    from benchmarks.contenders.torchvision_transforms import import_torchvision

    import_torchvision()
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    torch.manual_seed(0)
    rope = {"type": "mrope", "mrope_section": [2, 3, 3]}
    text = {
        "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rope_scaling": rope, "bos_token_id": None, "eos_token_id": END, "use_cache": False,
    }  # fmt: skip
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2}
    ids = {"image_token_id": IMAGE, "vision_start_token_id": START, "vision_end_token_id": STOP}
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **ids)).eval()


def test_packed_conversations_have_the_positions_and_the_loss_that_they_have_alone(documents: Path, model: Path) -> None:
    tiny = tiny_model(model)
    names = ["input_ids", "labels", "position_ids", "pixel_values", "image_grid_thw"]
    sums = []
    for length, packing, batch_size in ((256, "best-fit", 2), (256, "pad", 1)):
        data = dp.Conversations(documents, length, model, packing=packing, fields=[*names, "loss_tokens"])
        total = 0.0
        for batch in dp.DataLoader(data, batch_size, num_workers=0):
            num = batch.pop("loss_tokens")
            with torch.no_grad():
                total += float(tiny(**batch).loss) * num
            if packing == "pad" and batch["image_grid_thw"] is not None:
                types = (batch["input_ids"] == IMAGE).int()
                expected, _ = tiny.model.get_rope_index(batch["input_ids"], types, batch["image_grid_thw"])
                assert torch.equal(batch["position_ids"][1:], expected)
        sums.append(total)
    assert sums[0] == pytest.approx(sums[1], rel=1e-6)


def with_bad(path: Path, model: Path) -> Path:
    """Three short documents that share a row; the picture of the second is one that the model refuses."""
    documents = [[1, 2, picture(28, 28)], [3, 4, 5, 6, picture(1, 300)], [7, picture(28, 28), 8]]
    return write_set(path, documents, model)


def test_a_bad_conversation_is_left_out_of_its_row(tmp_path: Path, model: Path) -> None:
    data = dp.Conversations(with_bad(tmp_path / "shards", model), 24, model, fields=[*ALL, "cu_seqlens"])
    assert len(data) == 1
    with pytest.raises(DecodeError, match=r"line 2.*image 1: 1 x 300 pixels: its model takes no image"):
        next(iter(dp.DataLoader(data, 1)))
    loader = dp.DataLoader(data, 1, on_error="skip")
    (batch,) = loader
    first, last = [FIRST + 1, FIRST + 2, START, IMAGE, STOP, END], [FIRST + 7, START, IMAGE, STOP, FIRST + 8, END]
    assert batch["input_ids"].tolist() == [[*first, *[PAD] * 7, *last, *[PAD] * 5]]
    assert batch["cu_seqlens"].tolist() == [0, 6, 13, 19, 24]
    assert (batch["labels"][0, 6:13] == -100).all()
    assert batch["position_ids"][0].tolist() == [[*range(6), *range(7), *range(6), *range(5)]]
    assert batch["image_grid_thw"].tolist() == [[1, 2, 2], [1, 2, 2]]
    assert batch["pixel_values"].shape == (8, 1176)
    (bad,) = loader.bad_samples
    assert bad.id == 1
    assert "line 2" in bad.where


def test_a_bad_conversation_is_replaced_by_one_that_fits_into_its_place(tmp_path: Path, model: Path) -> None:
    data = dp.Conversations(with_bad(tmp_path / "shards", model), 24, model, fields=ALL)
    (batch,) = dp.DataLoader(data, 1, on_error="replace", seed=0)
    other = batch["input_ids"][0, 6:13].tolist()
    assert other in ([FIRST + 1, FIRST + 2, START, IMAGE, STOP, END, PAD], [FIRST + 7, START, IMAGE, STOP, FIRST + 8, END, PAD])
    assert batch["image_grid_thw"].shape == (3, 3)
    assert batch["pixel_values"].shape == (12, 1176)
    (again,) = dp.DataLoader(data, 1, on_error="replace", seed=0)
    assert torch.equal(again["input_ids"], batch["input_ids"])


@pytest.mark.parametrize("turned", [1, 6])
def test_large_photographs_are_decoded_at_a_smaller_scale_on_request(tmp_path: Path, model: Path, turned: int) -> None:
    """With pixels that hardly differ; what is not much larger than wanted stays exact."""
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).resize((1200, 800), Image.Resampling.BICUBIC)
    sink, exif = io.BytesIO(), noise.getexif()
    exif[0x0112] = turned
    noise.save(sink, "JPEG", quality=95, exif=exif)
    path = write_set(tmp_path / "shards", [[1, sink.getvalue()], [2, picture(60, 50, form="JPEG")]], model)
    found = [
        next(iter(dp.DataLoader(dp.Conversations(path, 32, model, decode=decode), 1, num_workers=0)))["pixel_values"]
        for decode in ("exact", "scaled")
    ]
    first = int(next(iter(dp.DataLoader(dp.Conversations(path, 32, model), 1)))["image_grid_thw"][0].prod())
    difference = (found[0] - found[1]).abs() * 127.5  # levels
    assert 0 < float(difference[:first].mean()) < 1.5
    assert not difference[first:].any()
    with pytest.raises(OptionError, match="decode is 'fast'; choose exact or scaled"):
        dp.Conversations(path, 32, model, decode="fast")


def test_another_resolution_needs_no_other_shards(documents: Path, tmp_path: Path) -> None:
    """Its plan is made anew, beside the others."""
    small, large = (words_model(tmp_path / f"{most}", most=28 * 28 * most) for most in (1, 9))
    data = [dp.Conversations(documents, 64, one).documents for one in (small, large)]
    numbers = np.arange(len(data[0].index))
    assert data[0].num_tokens(numbers).sum() < data[1].num_tokens(numbers).sum()
    plans = [path.name for path in documents.glob(".datapipe-index/packs-*")]
    assert len(plans) >= 2


def test_a_state_of_another_processor_is_refused(documents: Path, model: Path, tmp_path: Path) -> None:
    state = dp.DataLoader(dp.Conversations(documents, 64, model), 1, shuffle=True, seed=0).state_dict()
    assert len(json.dumps(state)) < 1000
    other = dp.DataLoader(
        dp.Conversations(documents, 64, words_model(tmp_path / "model", most=28 * 28 * 9)), 1, shuffle=True, seed=0
    )
    with pytest.raises(StateError, match="other processor, length"):
        other.load_state_dict(state)


def test_balanced_steps_have_the_rows_that_they_have_otherwise(documents: Path, model: Path) -> None:
    """Dealt to other micro-batches: those of like work come together."""
    steps: list[list[list[int]]] = []
    for balance in (None, "step"):
        data = dp.Conversations(documents, 32, model, fields=["id"], balance=balance, accumulate=2)
        ids = [batch["id"].tolist() for batch in dp.DataLoader(data, 2, shuffle=True, seed=3, drop_last=True)]
        steps.append([sorted(one + other) for one, other in zip(ids[::2], ids[1::2], strict=False)])
    assert len(steps[0]) > 2
    assert steps[0] == steps[1]


@needs_moto
@pytest.mark.nightly
def test_sets_in_a_store_give_the_same_batches(documents: Path, model: Path) -> None:
    with moto_store():
        upload(documents, "documents")
        options: dict[str, Any] = {"length": 64, "processor": model, "fields": ALL}
        loaders = [dp.DataLoader(dp.Conversations(one, **options), 2, shuffle=True, seed=0)
                   for one in (documents, f"s3://{BUCKET}/documents")]  # fmt: skip
        for here, there in zip(*loaders, strict=True):
            assert all(torch.equal(here[name], there[name]) for name in ALL if isinstance(here[name], torch.Tensor))


def test_sets_are_mixed_and_pickled(documents: Path, model: Path, tmp_path: Path) -> None:
    other = write_set(tmp_path / "other", [[900 + number, picture(30, 30, seed=number)] for number in range(9)], model)
    data = dp.mix([dp.Conversations(one, 64, model) for one in (documents, other)], weights=[0.5, 0.5], num_samples=20)
    batches = [*dp.DataLoader(pickle.loads(pickle.dumps(data)), 4, shuffle=True, seed=0)]
    are_other = [bool((row >= FIRST + 900).any()) for batch in batches for row in batch["input_ids"]]
    assert sum(are_other) == 10
    for batch in batches:
        assert len(batch["pixel_values"]) == int(batch["image_grid_thw"].prod(dim=1).sum())


def test_what_does_not_fit_is_said(documents: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"length is 8; pass long='drop', or a greater length"):
        dp.Conversations(documents, 8, model)
    assert len(dp.Conversations(documents, 8, model, long="drop"))
    with pytest.raises(OptionError, match="would cut images apart"):
        dp.Conversations(documents, 64, model, long="split")
    with pytest.raises(OptionError, match=r"holds conversations with images; read them with datapipe\.Conversations"):
        dp.Tokens(documents, 64)
    with pytest.raises(OptionError, match="say how long rows are, and the model"):
        dp.DataLoader(documents)
    with pytest.raises(OptionError, match="holds conversations with images"):
        dp.Images(documents)
    with pytest.raises(MissingDataError, match=r"preprocessor_config\.json"):
        dp.Conversations(documents, 64, tmp_path)
    other = model_folder(tmp_path / "other", "llava")
    with pytest.raises(OptionError, match="was converted for a model whose images are token 4"):
        dp.Conversations(documents, 64, other)
