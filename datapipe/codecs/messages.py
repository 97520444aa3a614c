"""Chats: messages of roles, as people write them."""

from __future__ import annotations

from typing import Any

from datapipe.errors import DecodeError

IMAGE_PARTS = ("image", "image_url", "input_image")  # types of the parts of a message
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}  # ShareGPT's names


def messages_of(value: Any) -> list[dict[str, Any]]:
    """Return the messages of a chat, each with `role` and `content`: of a list of them, or an object that has one.

    ShareGPT's `from` and `value` become these. Raises DecodeError.
    """
    if isinstance(value, dict):
        value = value.get("messages", value.get("conversations"))
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise DecodeError("no chat: expected a list of messages, each an object with `role` and `content`")
    messages = [
        {"role": _ROLES.get(one["from"], one["from"]), "content": one.get("value")}
        if "role" not in one and isinstance(one.get("from"), str)
        else one
        for one in value
    ]
    if not all(isinstance(one.get("role"), str) for one in messages):
        raise DecodeError("no chat: a message has no `role`")
    return messages


def has_images(messages: list[dict[str, Any]]) -> bool:
    """Return True if a part of a message is an image."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return any(isinstance(part, dict) and part.get("type") in IMAGE_PARTS for part in parts)
