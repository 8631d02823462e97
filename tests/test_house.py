"""The limits of the house: small folders, files and functions, and docstrings that say what a thing does. Reads sources alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tftq"
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
FOLDER_LIMIT, FILE_LIMIT, FUNCTION_LIMIT, PARAMETER_LIMIT, LINE_LIMIT = 18, 400, 60, 10, 140  # modules, lines, lines, names, characters
FRAGMENTS = ("What ", "As ", "Of ", "Whatever ", "That which ")  # a first line that begins so names a thing by half a sentence

Function = ast.FunctionDef | ast.AsyncFunctionDef


def definitions(path: Path) -> Iterator[tuple[str, ast.Module | ast.ClassDef | Function]]:
    """The module and every class and function in it, with "file:name"."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            yield f"{path.relative_to(PACKAGE)}:{getattr(node, 'name', 'module')}", node


def functions() -> Iterator[tuple[str, Function]]:
    """Every function and method of the package."""
    for path in FILES:
        yield from ((name, node) for name, node in definitions(path) if isinstance(node, Function))


def test_no_folder_has_more_modules_than_one_can_see_at_a_glance() -> None:
    sizes = {folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in FILES}}
    assert {folder.name for folder, size in sizes.items() if size > FOLDER_LIMIT} == set()


def test_no_file_is_longer_than_its_limit() -> None:
    assert {path.name for path in FILES if len(path.read_text().splitlines()) > FILE_LIMIT} == set()


def test_no_line_is_wider_than_its_limit() -> None:
    lines = ((path, number, line) for path in FILES for number, line in enumerate(path.read_text().splitlines(), 1))
    assert [f"{path.relative_to(PACKAGE)}:{number}" for path, number, line in lines if len(line) > LINE_LIMIT] == []


def test_no_function_is_longer_than_its_limit() -> None:
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
    assert {name for name, length in lengths.items() if length > FUNCTION_LIMIT} == set()


def test_no_function_has_more_parameters_than_its_limit() -> None:
    def count(node: Function) -> int:
        names = node.args
        return len([*names.posonlyargs, *names.args, *names.kwonlyargs, *filter(None, (names.vararg, names.kwarg))])

    assert {name for name, node in functions() if count(node) > PARAMETER_LIMIT} == set()


def test_docstrings_say_what_a_thing_does_or_is() -> None:
    named = {name for path in FILES for name, node in definitions(path) if (ast.get_docstring(node) or "").startswith(FRAGMENTS)}
    assert named == set()
