"""What is found out about a tokenizer and its template when a `ChatTokenizer` is built, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamsft.errors import ConfigError, TokenizerError
from streamsft.text.chat import ChatTokenizer, load_tokenizer
from streamsft.text.conversation import Conversation, RowRejected
from tests.text import tokenizers as made

EXCHANGE = Conversation([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}])


def ids(using: ChatTokenizer) -> list[int]:
    result = using.encode([EXCHANGE])[0]
    assert not isinstance(result, RowRejected), result
    return result.input_ids.tolist()


def answer(using: ChatTokenizer) -> str:
    result = using.encode([EXCHANGE])[0]
    assert not isinstance(result, RowRejected), result
    return using.decode(result.input_ids[result.loss_mask])


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "no chat template"),
        ("{% for m in messages %}{{ m.content }}", "line 1"),
        ("{{ raise_exception('never') }}", "never"),
        ("{{ messages.nope.content }}", "cannot render"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "nothing to end"),
        ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n\n' }}{% endfor %}", "nothing to end"),
        ("{{ messages[0].content }}</s>", "each content once"),
        ("{% for m in messages | reverse %}{{ m.content }}</s>{% endfor %}", "in order"),
        ("{{ bos_token }}" + "{{ bos_token }}" + made.CHATML, "2 BOS"),
        ("{% for m in messages %}{{ bos_token + m.content + '</s>' }}{% endfor %}", "2 BOS"),
        ("Chat: {{ bos_token }}" + made.CHATML, "not in front"),
        (made.CHATML_MARKED.replace("{% endgeneration %}", "").replace("{{ message.content }}", "{% endgeneration %}"
         "{{ message.content }}"), "generation marks"),
        ("{% for m in messages %}{% if m.role == 'user' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}"
         "{{ m.content }}{% endif %}</s>{% endfor %}", "generation marks"),
        ("{% generation %}{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}{% endgeneration %}",
         "generation marks"),
        (made.CHATML + "{% if false %}{% generation %}{% endgeneration %}{% endif %}", "generation marks"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_trained_with_is_refused(template: str | None, says: str) -> None:
    with pytest.raises(TokenizerError, match=says):
        ChatTokenizer(made.bpe(template))


def test_a_tokenizer_whose_own_bos_meets_a_template_with_bos_gets_one() -> None:
    using = ChatTokenizer(made.bpe("{{ bos_token }}" + made.CHATML, bos=True))
    assert ids(using).count(using.bos_id) == 1  # type: ignore[arg-type]
    assert ids(using)[0] == using.bos_id


def test_a_tokenizer_that_puts_bos_itself_puts_it_when_the_template_does_not() -> None:
    with_bos, without = ChatTokenizer(made.bpe(bos=True)), ChatTokenizer(made.bpe())
    assert ids(with_bos) == [with_bos.bos_id, *ids(without)]
    assert answer(with_bos) == answer(without) == "Yes<|im_end|>"
    everything = ChatTokenizer(made.bpe(bos=True), train_on="everything").encode([EXCHANGE])[0]
    assert not isinstance(everything, RowRejected)
    assert everything.loss_mask.all()


def test_one_token_for_beginning_and_end_is_no_double_beginning() -> None:
    tokenizer = made.bpe("{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}")
    tokenizer.bos_token = "</s>"
    assert answer(ChatTokenizer(tokenizer)) == "Yes</s>"
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    with pytest.raises(TokenizerError, match="2 BOS"):
        ChatTokenizer(tokenizer)


def test_settings_of_the_tokenizer_at_hand_change_nothing() -> None:
    plain, changed = made.bpe(), made.bpe()
    changed.backend_tokenizer.enable_truncation(4)
    changed.backend_tokenizer.enable_padding(length=64)
    changed.backend_tokenizer.encode_special_tokens = True
    try:
        assert ids(ChatTokenizer(changed)) == ids(ChatTokenizer(plain))
        assert ChatTokenizer(changed).tokenizer_hash == ChatTokenizer(plain).tokenizer_hash
    finally:  # the core is shared between the tokenizers of this module
        changed.backend_tokenizer.no_truncation()
        changed.backend_tokenizer.no_padding()
        changed.backend_tokenizer.encode_special_tokens = False


def test_an_end_mark_that_is_plain_text_is_supervised_whole() -> None:
    template = made.CHATML.replace("<|im_end|>", "[END]").replace("<|im_start|>", "[TURN]")
    assert answer(ChatTokenizer(made.bpe(template))) == "Yes[END]"


def test_a_header_token_that_swallows_whitespace_is_not_supervised() -> None:
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(made.bpe().backend_tokenizer.to_str())
    core.add_special_tokens([AddedToken("<|bot|>", rstrip=True, special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}<|bot|>\n{{ m.content + eos_token }}{% endfor %}"
    exchange = Conversation([EXCHANGE.messages[0], {"role": "assistant", "content": "  Yes"}])
    using = ChatTokenizer(tokenizer)
    result = using.encode([exchange])[0]
    assert not isinstance(result, RowRejected)
    assert using.decode(result.input_ids[result.loss_mask]) == "Yes</s>"


def test_templates_for_tools_are_used_where_there_are_tools() -> None:
    tokenizer = made.bpe(None)
    tokenizer.chat_template = {"default": made.CHATML, "tool_use": made.THINKING}
    using = ChatTokenizer(tokenizer)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert '"name": "f"' in using.render(Conversation(EXCHANGE.messages, tools)).text
    assert using.render(EXCHANGE).text == ChatTokenizer(made.bpe()).render(EXCHANGE).text


def test_a_template_comes_from_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(made.CHATML_MARKED)
    expected = ids(ChatTokenizer(made.bpe(made.CHATML_MARKED)))
    for given in (made.CHATML_MARKED, file, str(file)):
        assert ids(ChatTokenizer(made.bpe(None), chat_template=given)) == expected
    with pytest.raises(ConfigError, match="chat_template"):
        ChatTokenizer(made.bpe(), chat_template=tmp_path / "absent.jinja")


def test_a_template_that_reads_the_clock_is_told_a_fixed_day() -> None:
    template = "{{ strftime_now('%d %B %Y') + '\n' }}" + made.CHATML
    first = ChatTokenizer(made.bpe(template), date="2024-07-26")
    assert first.render(EXCHANGE).text.startswith("26 July 2024\n")
    assert ChatTokenizer(made.bpe(template)).render(EXCHANGE).text.startswith("01 January 2025\n")
    with pytest.raises(ConfigError, match=r"text\.date"):
        ChatTokenizer(made.bpe(template), date="26 July")


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
        "{{ ''.__class__ }}{{ namespace.__init__.__globals__ }}",
    ],
)
def test_templates_run_in_a_sandbox(attack: str) -> None:
    with pytest.raises(TokenizerError, match="cannot render"):
        ChatTokenizer(made.bpe(attack + made.CHATML))


@pytest.mark.parametrize("words", ["{% for m in messages %}{% if not loop.first %}{% break %}{% endif %}{% endfor %}"])
def test_loop_controls_are_known(words: str) -> None:
    assert answer(ChatTokenizer(made.bpe(words + made.CHATML))) == "Yes<|im_end|>"


def test_the_fingerprint_covers_all_that_decides_the_tokens() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"train_on": "everything"},
        {"chat_template": made.CHATML + " "},
        {"chat_template_kwargs": {"x": 1}},
        {"date": "2024-07-26"},
        {"format": "messages"},
    ]
    fingerprints = [ChatTokenizer(made.bpe(), **variant).fingerprint for variant in variants]
    assert len(set(fingerprints)) == len(variants)
    assert ChatTokenizer(made.bpe()).fingerprint == fingerprints[0]
    more = made.bpe()
    more.eos_token = "<|im_end|>"
    assert ChatTokenizer(more).fingerprint not in fingerprints
    assert ChatTokenizer(more).tokenizer_hash != ChatTokenizer(made.bpe()).tokenizer_hash


@pytest.mark.parametrize(
    "arguments", [{"train_on": "user"}, {"format": "chatml"}, {"chat_template_kwargs": {"x": object()}}]
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ChatTokenizer(made.bpe(), **arguments)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="absent"):
        load_tokenizer(tmp_path / "absent")


def test_something_that_is_no_fast_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerError, match="fast"):
        ChatTokenizer(object())


def test_the_real_tokenizer_loads_from_its_folder() -> None:
    using = ChatTokenizer(made.deepseek_folder())
    assert answer(using) == "Yes<｜end▁of▁sentence｜>"
    assert (using.bos_id, using.eos_id, using.pad_id) == (0, 1, 1)
    assert using.vocab_size >= 128_815
