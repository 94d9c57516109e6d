"""Which lines of a compiled module call Python: what ``cython -a`` colours yellow, as data.

A local variable or a module's constant without a C type still works, and is slow; no other test would say so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

LINE = re.compile(r'<span class="">(\d+)</span>:.*?</pre>\s*(?:<pre class=\'cython code[^>]*>(.*?)</pre>)?', re.DOTALL)
"""A line of the page: its number, and the C that it became."""

CALL = re.compile(r"class='(?:py|pyx)_c_api'>([^<]+)<")

CHEAP = {
    "PyErr_Occurred",
    "PyErr_SetString",  # where something is None that must not be
    "__Pyx_PyByteArray_AsString",
    "PyBytes_CheckExact",
    "__Pyx_ExceptionReset",
    "__Pyx_GetItemInt_Bytes",
    "__Pyx_PyByteArray_GET_SIZE",
    "__Pyx_PyBytes_GET_SIZE",
    "__Pyx_PyList_GET_SIZE",
    "__Pyx_PyList_GET_ITEM_REF",
    "__Pyx_PyObject_AsUString",  # the address of a bytearray's bytes
    "__Pyx_TypeTest",
}
"""Macros, inlined functions, and what is called where an error is raised."""


def lines_with_calls(module: str, scratch: Path) -> dict[str, list[str]]:
    """Return the lines that call Python, by function, without those that raise.

    ``module``: a path in the project without its suffix. ``scratch``: a folder for what Cython writes.
    """
    import setuptools
    from Cython.Build import cythonize

    source = ROOT / f"{module}.py"
    extension = setuptools.Extension(module.replace("/", "."), [str(source)])
    cythonize([extension], build_dir=str(scratch), include_path=[str(ROOT)], annotate=True, force=True, quiet=True)
    (page,) = scratch.rglob(f"{source.stem}.html")
    text = source.read_text()
    lines = text.splitlines()
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    raising = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    found: dict[str, list[str]] = {function.name: [] for function in functions}
    for number, code in ((int(match[1]), match[2] or "") for match in LINE.finditer(page.read_text())):
        if number not in raising and set(CALL.findall(code)) - CHEAP:
            for name in _within(functions, number):
                found[name].append(lines[number - 1].strip())
    return found


def _within(functions: Sequence[ast.FunctionDef], number: int) -> list[str]:
    """Return the functions whose body has this line; the line of the definition is of none."""
    return [each.name for each in functions if each.lineno < number <= (each.end_lineno or each.lineno)]
