"""Two nodes below `torchrun`, each with a cache of its own, make the steps of one process."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from streamsft.commands.train import train
from tests.pipelines import small_config
from tests.ports import held_port
from tests.processes import start

_MESSAGE = "done: 4 steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Where an agent of `torchrun` runs.

    Attributes:
        address: of the machine, as the other one sees it.
        interface: that the address is of.
        namespace: the network namespace; "" is this process's own.
    """

    address: str
    interface: str
    namespace: str = ""


@record
def rank(config: Path) -> None:
    train(config, quiet=True)


def agent(node: Node, number: int, nodes: int, ranks: int, endpoint: str, config: Path) -> None:
    """In a process of its own: what `torchrun` does on a node, with ranks that are forks of it."""
    shape: dict[str, Any] = {"min_nodes": nodes, "max_nodes": nodes, "nproc_per_node": ranks, "max_restarts": 0}
    place: dict[str, Any] = {
        "run_id": "nodes",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": endpoint,
        "local_addr": node.address,
    }
    place["rdzv_configs"] = {"is_host": number == 0}
    launch = LaunchConfig(**shape, **place, monitor_interval=0.1, start_method="fork")
    elastic_launch(launch, rank)(config)


def agent_inside(node: Node, number: int, nodes: int, ranks: int, endpoint: str, config: Path) -> None:
    """In a process of its own: the same in the node's network namespace."""
    with open(f"/run/netns/{node.namespace}", "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {node.namespace}")
    agent(node, number, nodes, ranks, endpoint, config)


def launch_on(nodes: Sequence[Node], launch: Callable[..., None], config: Path, *, ranks: int, port: int) -> list[str]:
    """What is printed on each node, which has so many ranks and a cache of its own, beside the config."""
    started = []
    for number, node in enumerate(nodes):
        place = {"GLOO_SOCKET_IFNAME": node.interface, "OMP_NUM_THREADS": "1"}
        cache = {"STREAMSFT_CACHE": str(config.parent / f"cache-{number}")}
        given = (node, number, len(nodes), ranks, f"{nodes[0].address}:{port}", config)
        started.append(start(launch, *given, environment=os.environ | place | cache))
    ended = [process.end(120) for process in started]
    assert [one.returncode for one in ended] == [0] * len(nodes), "".join(one.stderr for one in ended)
    return [one.stdout for one in ended]


def write_config(folder: Path) -> Path:
    """A config without a place for its cache, which is then where the environment says."""
    folder.mkdir(parents=True)
    config = small_config(folder, cache={})
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def steps(run: Path) -> dict[int, list[Any]]:
    """The packs of each step, in the order of ranks."""
    found: dict[int, list[Any]] = {}
    for file in sorted((run / "audit").glob("rank-*.jsonl")):
        for line in map(json.loads, file.read_text().splitlines()):
            found.setdefault(line["step"], []).extend(line["packs"])
    return found


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    folder = tmp_path_factory.mktemp("alone") / "run"
    config = write_config(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMSFT_CACHE", str(folder / "cache"))
        train(config, quiet=True)
    return steps(folder / "run")


def check(folder: Path, printed: list[str], whole: dict[int, list[Any]], *, ranks: int) -> None:
    """The run is that of one process, and each node has tokenized each source once."""
    assert len(whole) == 4
    assert steps(folder / "run") == whole
    assert [text.count(_MESSAGE) for text in printed] == [1, 0]
    assert len(list((folder / "run" / "audit").iterdir())) == ranks
    caches = [sorted(store.name for store in (folder / f"cache-{node}" / "stores").iterdir()) for node in (0, 1)]
    assert caches[0] == caches[1]
    assert len(caches[0]) == 3


def test_two_agents_of_two_ranks_make_the_steps_of_one_process(
    tmp_path: Path, one_process: dict[int, list[Any]]
) -> None:
    config = write_config(tmp_path / "two")
    nodes = [Node(address="127.0.0.1", interface="lo")] * 2
    with held_port() as port:
        printed = launch_on(nodes, agent, config, ranks=2, port=port)
    check(config.parent, printed, one_process, ranks=4)


@pytest.fixture
def namespaces() -> Iterator[list[Node]]:
    """Two network namespaces that a pair of virtual links joins, where they can be made."""
    names = [f"streamsft-{os.getpid()}-{side}" for side in "ab"]
    links = [f"sft{os.getpid() % 10**8}{side}" for side in "ab"]
    nodes = [
        Node(address=f"10.83.57.{host}", interface=link, namespace=name)
        for host, (name, link) in enumerate(zip(names, links, strict=True), 1)
    ]
    try:
        for name in names:
            _ip("netns", "add", name)
        first, second = nodes
        _ip("link", "add", first.interface, "type", "veth", "peer", "name", second.interface)
        for node in nodes:
            _ip("link", "set", node.interface, "netns", node.namespace)
            _ip("-n", node.namespace, "addr", "add", f"{node.address}/24", "dev", node.interface)
            for link in ("lo", node.interface):
                _ip("-n", node.namespace, "link", "set", link, "up")
        yield nodes
    except FileNotFoundError:
        pytest.skip("there is no `ip`")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    finally:
        for name in names:
            if Path("/run/netns", name).exists():
                _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def test_two_network_namespaces_make_the_steps_of_one_process(
    tmp_path: Path, namespaces: list[Node], one_process: dict[int, list[Any]]
) -> None:
    config = write_config(tmp_path / "two")
    check(config.parent, launch_on(namespaces, agent_inside, config, ranks=1, port=29400), one_process, ranks=2)
