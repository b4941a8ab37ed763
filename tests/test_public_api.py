"""The public names: they import, lazily; they are documented; errors travel between processes; files stay small."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import streamsft as ss
from streamsft import errors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "streamsft"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = sorted(
    {module.name for module in pkgutil.walk_packages([str(PACKAGE)], "streamsft.")} - {"streamsft.__main__"}
)
ERRORS = [getattr(errors, name) for name in errors.__all__]
HEAVY = {"torch", "torchdata", "transformers", "tokenizers", "datasets", "pyarrow", "pandas", "tensorboard"}


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


# The names ------------------------------------------------------------------------------------------------------


def test_every_exported_name_imports_and_is_documented() -> None:
    assert not [name for name in ss.__all__ if not inspect.getdoc(getattr(ss, name))]
    assert set(ss.__all__) <= set(dir(ss))


def test_what_type_checkers_see_is_what_is_exported() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name
            imported[alias.name] = str(node.module)
    assert imported == ss._ORIGINS


def test_no_exported_name_is_also_a_module() -> None:
    # `import streamsft.x` would otherwise replace the exported x by the module.
    assert not {f"streamsft.{name}" for name in ss.__all__} & set(MODULES)


def test_only_public_names_are_listed() -> None:
    importlib.import_module("streamsft.errors")  # modules that were imported, and what this one needs itself, are not
    assert dir(ss) == sorted([*ss.__all__, "__version__"])


def test_all_names_come_with_a_star_import() -> None:
    scope: dict[str, object] = {}
    exec("from streamsft import *", scope)
    assert set(ss.__all__) <= scope.keys()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Interleaver'"):
        ss.Interleaver  # noqa: B018


@pytest.mark.parametrize("module", ["streamsft", "streamsft.cli", "streamsft.config"])
def test_importing_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & {name.partition(".")[0] for name in loaded}


# Docstrings -----------------------------------------------------------------------------------------------------


def test_every_public_definition_of_a_module_has_a_docstring() -> None:
    modules = [importlib.import_module(name) for name in MODULES]
    assert not [one for one in modules if Path(str(one.__file__)).stat().st_size and not one.__doc__]
    missing = [
        (module.__name__, item)
        for module in modules
        for item in getattr(module, "__all__", [])
        if not _documented(module, item)
    ]
    assert not missing


def _documented(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    if not inspect.isroutine(value) and not inspect.isclass(value):
        return True  # a constant or an alias: the comment beside it says what it is
    return bool(inspect.getdoc(value))


def test_every_public_method_has_a_docstring() -> None:
    missing = [
        (value.__name__, attribute)
        for value in map(ss.__getattr__, ss.__all__)
        if inspect.isclass(value)
        for attribute, member in vars(value).items()
        if not attribute.startswith("_") and (inspect.isroutine(member) or isinstance(member, property))
        if not inspect.getdoc(getattr(value, attribute)) and attribute not in _documented_by_protocols()
    ]
    assert not missing


def _documented_by_protocols() -> set[str]:
    """Methods that a protocol says all about, so that what implements it need not."""
    protocols = [value for value in map(ss.__getattr__, ss.__all__) if getattr(value, "_is_protocol", False)]
    return {name for protocol in protocols for base in protocol.__mro__ for name in (*vars(base), *_annotated(base))}


def _annotated(value: type) -> set[str]:
    return set(getattr(value, "__annotations__", {}))


# Errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_survives_pickling_and_copying(error: type[errors.StreamsftError]) -> None:
    original = error("gsm8k: train.jsonl:3: 'question' is missing; name the column in columns")
    original.add_note("while planning step 3")
    for again in (pickle.loads(pickle.dumps(original)), copy.copy(original)):
        assert type(again) is error
        assert str(again) == str(original)
        assert again.__notes__ == original.__notes__


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_built_from_its_message_alone(error: type[errors.StreamsftError]) -> None:
    assert issubclass(error, errors.StreamsftError)
    assert issubclass(error, ValueError)
    assert "__init__" not in vars(error)
    assert error("message").args == ("message",)


def test_the_drawn_tree_of_errors_is_the_real_one() -> None:
    above: list[tuple[int, str]] = []
    drawn: dict[str, str] = {}
    for line in str(errors.__doc__).splitlines():
        found = re.match(r"[\s│├└─]*(\w+Error)\b", line)
        if found:
            above = [item for item in above if item[0] < found.start(1)]
            drawn[found[1]] = above[-1][1] if above else "ValueError"
            above.append((found.start(1), found[1]))
    assert drawn == {error.__name__: error.__base__.__name__ for error in ERRORS if error.__base__}


# Files ----------------------------------------------------------------------------------------------------------


def test_a_file_is_under_300_lines() -> None:
    assert not [names(path) for path in FILES if len(path.read_text().splitlines()) >= 300]


def test_torch_distributed_is_asked_in_one_place_and_for_divided_weights() -> None:
    # Import contracts in pyproject.toml see whole packages only; this is about a part of one.
    divided = {f"streamsft/training/{name}.py" for name in ("sharding", "sharded", "shardfiles")}
    using = {names(path) for path in FILES if _says(path, r"torch\.distributed|get_worker_info")}
    assert using <= {"streamsft/comm.py", "streamsft/mesh.py", *divided}


def test_no_order_comes_from_a_random_generator() -> None:
    pure = [path for path in FILES if path.parent.name in {"order", "sources", "text", "stream", "metrics"}]
    assert len(pure) > 50
    random = r"import random\b|\bnp\.random|numpy\.random|default_rng"
    assert not [names(path) for path in pure if _says(path, random)]


def _says(path: Path, pattern: str) -> bool:
    """Whether the code of a file has something; the rare one whose text has it is parsed."""
    return bool(re.search(pattern, path.read_text()) and re.search(pattern, _code(path)))


def _code(path: Path) -> str:
    """The source of a file without comments and docstrings."""
    return ast.unparse(_WithoutDocstrings().visit(ast.parse(path.read_text())))


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node
