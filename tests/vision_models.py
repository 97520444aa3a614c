"""Folders of models that take images, as transformers saves them: small tokenizers, and the processors' own configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers_of_tests import byte_level

from benchmarks.contenders.torchvision_transforms import import_torchvision

MARKS = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
TOKENS = [
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>",
    "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<start_of_image>", "<end_of_image>",
    "<image_soft_token>", *MARKS,
]  # fmt: skip
FAMILIES = ("qwen", "qwen3", "internvl", "idefics3", "idefics3_whole", "llava", "siglip", "gemma3")


def image_processor(family: str) -> Any:
    """The processor of images of a family in transformers, as small as its tests allow."""
    import_torchvision()
    import transformers

    if family == "qwen":
        return transformers.Qwen2VLImageProcessor(size={"shortest_edge": 56 * 56, "longest_edge": 160 * 28 * 28})
    if family == "qwen3":
        half = [0.5, 0.5, 0.5]
        size = {"shortest_edge": 4096, "longest_edge": 400_000}
        return transformers.Qwen2VLImageProcessor(size=size, patch_size=16, image_mean=half, image_std=half)
    if family == "internvl":
        return transformers.GotOcr2ImageProcessor(size={"height": 112, "width": 112}, crop_to_patches=True, max_patches=6)
    if family.startswith("idefics3"):
        sizes: dict[str, Any] = {"size": {"longest_edge": 336}, "max_image_size": {"longest_edge": 112}}
        return transformers.Idefics3ImageProcessor(**sizes, do_image_splitting=family == "idefics3")
    if family == "llava":
        return transformers.CLIPImageProcessor(size={"shortest_edge": 84}, crop_size={"height": 84, "width": 84})
    if family == "siglip":
        return transformers.SiglipImageProcessor(size={"height": 70, "width": 98})
    return transformers.Gemma3ImageProcessor(size={"height": 96, "width": 96})


OF_TEXT = {
    "internvl": {"image_seq_length": 16},
    "idefics3": {"image_seq_len": 9},
    "idefics3_whole": {"image_seq_len": 9},
    "llava": {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
    "siglip": {"patch_size": 14},
    "gemma3": {"image_seq_length": 4},
}


_TURN = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
_PARTS = (
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
)
_ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_CHATML = f"{_TURN}{_PARTS}<|im_end|>\n{{% endfor %}}{_ANSWER}"
_IDEFICS = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    + _PARTS
    + "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
_LLAVA = (  # all images of a message come before its texts
    "{% for message in messages %}{{ message['role'] | upper }}: "
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }} {% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
TEMPLATES = {  # in the style of each family's own
    "qwen": _CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    "qwen3": _CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    "internvl": _CHATML.replace("IMAGE", "<IMG_CONTEXT>\n"),
    "idefics3": _IDEFICS.replace("IMAGE", "<image>"),
    "idefics3_whole": _IDEFICS.replace("IMAGE", "<image>"),
    "llava": _LLAVA,
    "siglip": _LLAVA,
    "gemma3": _CHATML.replace("IMAGE", "<start_of_image>"),
}


def model_folder(path: Path, family: str) -> Path:
    """Write the folder of a model: tokenizer.json, and the configurations beside it."""
    from tokenizers import AddedToken, Tokenizer

    file = byte_level(path)
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in TOKENS])
    tokenizer.save(str(file))
    config = json.loads((path / "tokenizer_config.json").read_text())
    names = {
        "internvl": {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
                     "video_token": "<video>"},
        "gemma3": {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(config | names.get(family, {})))
    (path / "chat_template.jinja").write_text(TEMPLATES[family])
    image_processor(family).save_pretrained(path)
    if family in OF_TEXT:
        (path / "processor_config.json").write_text(json.dumps(OF_TEXT[family]))
    return path


def text_processor(path: Path, family: str) -> Any:
    """The processor of texts and images of a family in transformers, over the tokenizer in a folder."""
    import_torchvision()
    import transformers

    names = json.loads((path / "tokenizer_config.json").read_text())
    special = {name: names[name] for name in ("start_image_token", "end_image_token", "context_image_token", "video_token",
                                              "boi_token", "eoi_token", "image_token") if name in names}  # fmt: skip
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path / "tokenizer.json"), pad_token="<|im_end|>", extra_special_tokens=special
    )
    images, more = image_processor(family), OF_TEXT.get(family, {})
    kind = {
        "qwen": transformers.Qwen2VLProcessor, "qwen3": transformers.Qwen2VLProcessor, "internvl": transformers.InternVLProcessor,
        "idefics3": transformers.Idefics3Processor, "idefics3_whole": transformers.Idefics3Processor,
        "llava": transformers.LlavaProcessor, "siglip": transformers.LlavaProcessor, "gemma3": transformers.Gemma3Processor,
    }[family]  # fmt: skip
    if family in ("qwen", "qwen3"):
        return kind(images, tokenizer, transformers.Qwen2VLVideoProcessor())
    if family == "internvl":
        return kind(images, tokenizer, transformers.InternVLVideoProcessor(), **more)
    return kind(images, tokenizer, **more)
