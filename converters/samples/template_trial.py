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
    print(json.dumps(_problem(given["template"], given["names"])))


def _problem(template: str, names: dict[str, str]) -> str | None:
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
