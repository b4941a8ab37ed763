"""Where a tokenizer or a model is: told at once where it can be seen, and without waiting for a hub that is away."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest

from streamsft.errors import TokenizerError
from streamsft.sources.hub import HubDataset
from streamsft.sources.hublocation import Location, hub_is_offline, locate, without_hub

FILES = ("tokenizer.json", "tokenizer_config.json")


def find(given: str) -> Location:
    return locate(given, key="tokenizer", files=FILES, error=TokenizerError)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The names that were looked up, in vain."""
    asked: list[Any] = []

    def refuse(host: Any, *_: Any, **__: Any) -> None:
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return asked


@pytest.mark.parametrize(
    "given", ["no/such/folder", "./tok", "/no/such/tok", "~/no-such-tok", "tok enizer", "t.json", "a--b"]
)
def test_what_can_only_be_a_path_is_not_asked_for_on_the_hub(
    given: str, no_network: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        TokenizerError, match=r"tokenizer: .*no such folder; the nearest path that exists is /.*package:"
    ):
        find(given)
    assert not no_network


def test_a_mistyped_folder_names_the_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "demo" / "tokenizer").mkdir(parents=True)
    with pytest.raises(TokenizerError, match=f"exists is {tmp_path}/demo, which holds tokenizer"):
        find(f"{tmp_path}/demo/tokenzier")


def test_a_folder_that_holds_something_else_and_a_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(TokenizerError, match=r"holds none of tokenizer\.json.*it holds notes\.txt"):
        find(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert find(str(tmp_path)) == Location(name=str(tmp_path), offline=True)
    with pytest.raises(TokenizerError, match=f"is a file; give the folder that it is in: {tmp_path}"):
        find(str(tmp_path / "tokenizer.json"))


def test_without_a_network_the_hub_is_away(no_network: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_is_offline()
    assert find("owner/name") == Location(name="owner/name", offline=True)
    assert no_network
    no_network.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert hub_is_offline()
    assert not no_network


def test_a_hub_that_answers_is_there_and_one_that_does_not_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    class Session:
        def __init__(self, wait: bool) -> None:
            self.wait = wait

        def head(self, url: str, timeout: float) -> str:
            if self.wait:
                never.wait()
            return f"{url} within {timeout}"

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: Session(False))
    assert find("owner/name") == Location(name="owner/name", offline=False)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: Session(True))
    assert hub_is_offline(0.01)
    never.set()


def test_a_dataset_of_the_hub_is_not_waited_for(no_network: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"hub: owner/no-such-data: cannot be loaded: the hub cannot be reached"):
        HubDataset(id="owner/no-such-data").load()
    assert len(no_network) <= 2  # one question, no retries
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_the_caches_alone_are_used_inside_the_block() -> None:
    import datasets.config

    before = datasets.config.HF_HUB_OFFLINE
    with without_hub():
        assert datasets.config.HF_HUB_OFFLINE
        assert huggingface_hub.constants.HF_HUB_OFFLINE
    assert before == datasets.config.HF_HUB_OFFLINE
