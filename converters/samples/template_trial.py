"""Compile a chat template, and render small chats by it: a script, for `samples.templates`. Standard input is JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

_TURN = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A text."}]
_CHATS = (_TURN, [{"role": "system", "content": "Be brief."}, *_TURN * 2])


def main() -> None:
    """Print what is wrong with the template, in JSON: null if nothing is."""
    given = json.load(sys.stdin)
    print(json.dumps(_problem(given["template"], given["names"], given["image"])))


def _problem(template: str, names: dict[str, str], image: str | None) -> str | None:
    """Return what is wrong with a template. `image`: what it should write for an image; None if chats have none."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        render_jinja_template([], chat_template=template)  # which compiles it
    except TemplateSyntaxError as exc:
        return f"line {exc.lineno} is no Jinja ({exc.message}); repair it"
    except RecursionError:
        return "it is nested too deep; repair it"
    except Exception as exc:
        return f"it does not compile ({exc!r:.120}); repair it"
    for chat in _CHATS:
        _rendered(render_jinja_template, chat, template, names)
    return None if image is None else _problem_with(image, render_jinja_template, template, names)


def _problem_with(image: str, render: Any, template: str, names: dict[str, str]) -> str | None:
    """Return what is wrong with what a template makes of a message with an image."""
    texts: list[list[dict[str, str]]] = [[{"type": "text", "text": message["content"]}] for message in _TURN]
    texts[0].append({"type": "image"})
    chat = [{**message, "content": content} for message, content in zip(_TURN, texts, strict=True)]
    remedy = "pass that of a model that takes images, such as the chat_template.jinja beside its tokenizer"
    try:
        (text,), _ = render([chat], chat_template=template, add_generation_prompt=False, **names)
    except Exception as exc:
        return f"it refuses a message with an image ({str(exc) or repr(exc):.120}); {remedy}"
    if text.count(image) != 1:
        return f"it writes {image!r} {text.count(image)} times for a message with one image; {remedy}"
    if not all(message["content"] in text for message in _TURN):
        return f"it leaves out texts beside an image; {remedy}"
    return None


def _rendered(render: Any, chat: list[dict[str, str]], template: str, names: dict[str, str]) -> None:
    """Render a chat. Raises MemoryError; what else a template raises, it may raise: of chats that it does not take."""
    for prompts in (False, True):
        try:
            render([chat], chat_template=template, add_generation_prompt=prompts, **names)
        except MemoryError:
            raise
        except Exception:
            continue


if __name__ == "__main__":
    main()
