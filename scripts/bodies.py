"""Tells what a test does by its body, so that one that moved is known again."""

from __future__ import annotations

import ast
import hashlib


def bodies(source: bytes) -> dict[tuple[str, str], str]:
    """Return a short hash of each test method's body by (class, method); a file that can't be parsed has none.

    Decorators and position don't count; of a class or method that stands twice, the last one does, as in Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[tuple[str, str], str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    text = "\n".join(ast.dump(statement) for statement in method.body)
                    found[node.name, method.name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found
