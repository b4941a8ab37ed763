"""Independent answers to what the test templates write and what of it is supervised.

Each writes a chat piece by piece, by hand, and knows of every piece whether the model writes it. Masks are then
checked against all offsets of all tokens, one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

Part = tuple[str, bool]
Oracle = Callable[[Sequence[dict[str, Any]], Collection[int]], list[Part]]


def text_of(parts: Sequence[Part]) -> str:
    return "".join(text for text, _ in parts)


def spans_of(parts: Sequence[Part]) -> list[tuple[int, int]]:
    spans, position = [], 0
    for text, written in parts:
        if written and text:
            spans.append((position, position + len(text)))
        position += len(text)
    return spans


def mask_of(tokenizer: Any, parts: Sequence[Part]) -> tuple[list[int], list[bool]]:
    """Token ids, and True for every token that holds a supervised character."""
    encoded = tokenizer(text_of(parts), add_special_tokens=False, return_offsets_mapping=True)
    spans = spans_of(parts)
    mask = [any(a < stop and start < b for start, stop in spans) for a, b in encoded["offset_mapping"]]
    return encoded["input_ids"], mask


def turns(messages: Sequence[dict[str, Any]]) -> list[int]:
    return [index for index, message in enumerate(messages) if message["role"] == "assistant"]


def chatml(messages: Sequence[dict[str, Any]], wanted: Collection[int]) -> list[Part]:
    parts: list[Part] = []
    for index, message in enumerate(messages):
        parts += [
            (f"<|im_start|>{message['role']}\n", False),
            (f"{message['content']}<|im_end|>", index in wanted),
            ("\n", False),
        ]
    return parts


def trimming(messages: Sequence[dict[str, Any]], wanted: Collection[int]) -> list[Part]:
    parts: list[Part] = [("<s>", False)]
    for index, message in enumerate(messages):
        parts.append((f"<|header|>{message['role']}<|/header|>\n\n", False))
        written = message["content"].strip() + "<|eot|>"
        for call in message.get("tool_calls", ()):
            arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            written = f'{{"name": "{call["function"]["name"]}", "parameters": {arguments}}}<|eom|>'
        parts.append((written, index in wanted))
    return parts


def plain(messages: Sequence[dict[str, Any]], wanted: Collection[int]) -> list[Part]:
    parts: list[Part] = []
    for index, message in enumerate(messages):
        if message["role"] == "user":
            parts.append((f"USER: {message['content']} ", False))
        else:
            parts += [("ASSISTANT: ", False), (f"{message['content']}</s>", index in wanted)]
    return parts


def thinking(messages: Sequence[dict[str, Any]], wanted: Collection[int]) -> list[Part]:
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    parts: list[Part] = []
    for index, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "tool":
            parts.append((f"<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n", False))
            continue
        if role != "assistant":
            parts.append((f"<|im_start|>{role}\n{content}<|im_end|>\n", False))
            continue
        reasoning = message.get("reasoning_content", "")
        if "</think>" in content:
            reasoning = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
            content = content.split("</think>")[-1].lstrip("\n")
        written = f"<think>\n{reasoning.strip(chr(10))}\n</think>\n\n{content}" if index > last else content
        for number, call in enumerate(message.get("tool_calls", ())):
            written += "\n" if content or number else ""
            arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            written += f'<tool_call>\n{{"name": "{call["function"]["name"]}", "arguments": {arguments}}}\n</tool_call>'
        parts += [("<|im_start|>assistant\n", False), (written + "<|im_end|>", index in wanted), ("\n", False)]
    return parts


def deepseek(messages: Sequence[dict[str, Any]], wanted: Collection[int]) -> list[Part] | None:
    """None for a second turn that calls tools: the template then writes neither its header nor its content."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    parts: list[Part] = [("<｜begin▁of▁sentence｜>" + "\n\n".join(system), False)]
    called = after_tool = first_result = False
    for index, message in enumerate(messages):
        content = message["content"]
        if message["role"] == "user":
            parts.append((f"<｜User｜>{content}", False))
            after_tool = False
        elif message["role"] == "tool":
            opening = "" if first_result else "<｜tool▁outputs▁begin｜>"
            parts.append((f"{opening}<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>", False))
            after_tool = first_result = True
        elif message["role"] == "assistant" and "tool_calls" in message:
            if called:
                return None
            called, after_tool = True, False
            calls = [
                f"<｜tool▁call▁begin｜>{call['type']}<｜tool▁sep｜>{call['function']['name']}\n```json\n"
                f"{_json_text(call['function']['arguments'])}\n```<｜tool▁call▁end｜>"
                for call in message["tool_calls"]
            ]
            written = f"{content}<｜tool▁calls▁begin｜>" + "\n".join(calls)
            parts.append(("<｜Assistant｜>", False))
            parts.append((f"{written}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>", index in wanted))
        elif message["role"] == "assistant":
            parts.append(("<｜tool▁outputs▁end｜>" if after_tool else "<｜Assistant｜>", False))
            written = content if after_tool else content.split("</think>")[-1]
            parts.append((f"{written}<｜end▁of▁sentence｜>", index in wanted))
            after_tool = False
    if after_tool:
        parts.append(("<｜tool▁outputs▁end｜>", False))
    return parts


def _json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
