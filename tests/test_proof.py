"""The proof that a patch restores tests and does nothing else, on whatever a patch could do instead."""

from __future__ import annotations

import builtins
import itertools
import re
import sys
import types
import unittest
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.proof import prove

MODULE = """\
from __future__ import annotations

import platform
import unittest

from common import IS_ARM64, IS_MACOS, TestCase

SECONDS = 3
INVALID = IS_MACOS or IS_ARM64


def helper(n=1):
    return n


if not INVALID:

    @unittest.skipIf(IS_MACOS, "why")
    class T(TestCase):
        \"\"\"Says what it tests.\"\"\"

        retries = 1

        def test_a(self):
            self.assertEqual(1, helper())

        @unittest.skipUnless(platform.system() == "Linux", "why")
        def test_b(self, n=2):
            with self.assertRaises(OSError):
                raise OSError

        class Inner:
            value = 1


class U(TestCase):
    def test_c(self):
        pass


for name in ("d", "e"):
    setattr(U, name, helper)


def load_tests(loader, tests, pattern):
    return tests


if __name__ == "__main__":
    unittest.main()
"""


def proof(before: str, after: str) -> list[str]:
    """Return what is wrong with a change that is a change."""
    assert before != after
    return prove(before.encode(), after.encode())


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("assertEqual(1, helper())", "assertTrue(1)", "changes T.test_a"),
        ("                raise OSError\n", "                raise OSError(1)\n", "changes T.test_b"),
        ("self.assertEqual(1, helper())", "pass", "changes T.test_a"),
        ("self.assertEqual", "return; self.assertEqual", "changes T.test_a"),
        ("self.assertEqual", "if not IS_ARM64: self.assertEqual", "changes T.test_a"),
        ("test_a", "a_test", "removes T.test_a"),
        ("        def test_a(self):\n            self.assertEqual(1, helper())\n", "", "removes T.test_a"),
        ("retries = 1\n", "retries = 1\n        def test_z(self): pass\n", "adds T.test_z"),
        ("retries = 1\n", "retries = 2\n", "changes the statement 'retries = 1' of T"),
        ("            value = 1\n", "            value = 2\n", "changes T.Inner"),
        ("        class Inner:", "        class Other:", "removes T.Inner"),
        ("Says what it tests", "Says", "removes the statement"),
        ("    def test_c(self):", "    async def test_c(self):", "removes U.test_c"),
        ("        pass\n", "        pass\n    def test_c(self): return\n", "adds U.test_c"),
        ("def test_b(self, n=2)", "def test_b(self, n=3)", "changes T.test_b"),
        ("def helper(n=1)", "def helper(n=2)", "changes function helper"),
        ("return n", "return n + 1", "changes function helper"),
        ('platform.system() == "Linux"', "True", "changes T.test_b"),
        ('        @unittest.skipUnless(platform.system() == "Linux", "why")\n', "", "changes T.test_b"),
        ("        def test_a", "        @unittest.skip('x')\n        def test_a", "changes T.test_a"),
        (
            '@unittest.skipIf(IS_MACOS, "why")',
            '@unittest.skipIf(True, "why")',
            "changes the bases or decorators of class T",
        ),
        ('    @unittest.skipIf(IS_MACOS, "why")\n', "", "changes the bases or decorators of class T"),
        ("class U(TestCase)", "class U(unittest.TestCase)", "changes the bases or decorators of class U"),
        ("class U(TestCase)", "class U(TestCase, metaclass=M)", "changes the bases or decorators of class U"),
        ("class U(TestCase)", "class V(TestCase)", "changes class U to class V"),
        ("class U(TestCase)", "class U(TestCase): pass\nclass U(TestCase)", "adds class U"),
        ("SECONDS = 3", "SECONDS = 4", "changes the statement 'SECONDS = 3' to the statement 'SECONDS = 4'"),
        ("SECONDS = 3\n", "", "removes the statement 'SECONDS = 3'"),
        ("SECONDS = 3\n", "SECONDS: int = 3\n", "adds the statement 'SECONDS: int = 3'"),
        ("SECONDS = 3\n", "SECONDS = TestCase = 3\n", "changes the statement 'SECONDS = 3' to"),
        ("import unittest\n", "import unittest\nimport helpers\n", "adds the import of helpers"),
        ("import unittest\n", "import unittest, helpers as unittest\n", "adds the import of unittest"),
        (
            "import IS_ARM64, IS_MACOS, TestCase",
            "import IS_ARM64, IS_MACOS, FakeCase as TestCase",
            "changes the import of TestCase",
        ),
        ("from common", "from uncommon", "changes the import of IS_ARM64"),
        (
            "import platform\n",
            "import platform as unittest\n",
            "changes the import of platform to the import of unittest",
        ),
        ("import platform\n", "", "removes the import of platform"),
        ("import platform\n", "if IS_ARM64:\n    import platform\n", "removes the import of platform"),
        (
            "import platform\n",
            "try:\n    import platform\nexcept ImportError:\n    exit()\n",
            "adds the statement 'try:'",
        ),
        ("from __future__ import annotations\n", "", "removes the import of annotations"),
        (
            "from __future__ import annotations\n",
            "from __future__ import annotations, division\n",
            "adds the import of division",
        ),
        ('("d", "e")', '("d",)', "changes the statement 'for name in"),
        ("    setattr(U, name, helper)", "    pass", "changes the statement 'for name in"),
        ("    return tests", "    return loader.suiteClass()", "changes function load_tests"),
        ("def load_tests(", "def loaded(", "changes function load_tests to function loaded"),
        ('if __name__ == "__main__"', 'if __name__ != "__main__"', "changes the guard"),
        ('if __name__ == "__main__"', "if True", "makes the statement 'unittest.main()' run"),
        ('if __name__ == "__main__"', "while True", "removes the statement 'if __name__"),
        ("IS_MACOS or IS_ARM64", "True", "keeps a block from running that the guard 'not INVALID' had let run"),
        ("if not INVALID", "if INVALID", "changes the guard 'not INVALID' to 'INVALID'"),
        ("if not INVALID", "if not INVALID and not IS_ARM64", "changes the guard 'not INVALID' to"),
        ("if not INVALID", "if False", "keeps a block from running"),
        ("if not INVALID", "if 0", "changes the guard 'not INVALID' to '0'"),
        ("if not INVALID", "if (INVALID := 1)", "changes the guard 'not INVALID' to"),
        ("if not INVALID", "while not INVALID", "removes the statement 'if not INVALID:'"),
        ("if not INVALID:", "with INVALID:", "removes the statement 'if not INVALID:'"),
        ("if not INVALID:", "for INVALID in ():", "removes the statement 'if not INVALID:'"),
        ("if not INVALID:", "def hidden():", "removes the statement 'if not INVALID:'"),
        ("if not INVALID:", "class Hidden:", "removes the statement 'if not INVALID:'"),
        ("    return n\n", "    global U\n    return n\n", "changes function helper"),
        ("class U", "@unittest.expectedFailure\nclass U", "changes the bases or decorators of class U"),
        ("self.assertEqual(1, helper())", "self.assertEqual(1, helper()", "leaves a file that can't be parsed"),
        (
            "SECONDS = 3",
            "SECONDS = 0x" + "9" * 5000,
            "leaves a file that can't be parsed and compared: Exceeds the limit",
        ),
        ("SECONDS = 3", "SECONDS = " + "-" * 5000 + "3", "leaves a file that can't be parsed and compared: "),
        ("SECONDS = 3", "SECONDS = 3\0", "leaves a file that can't be parsed and compared: "),
    ],
)
def test_a_patch_may_not(old: str, new: str, problem: str) -> None:
    assert MODULE.count(old) == 1
    found = proof(MODULE, MODULE.replace(old, new))
    assert any(line.startswith(problem) for line in found), found


@pytest.mark.parametrize(
    "statement",
    [
        "unittest.skip = print",
        "TestCase.assertEqual = print",
        "IS_ARM64 = True",
        "__test__ = False",
        "raise unittest.SkipTest",
        "exit()",
        "assert not IS_ARM64",
        "del unittest.skip",
        "if IS_ARM64:\n    exit()",
        "while IS_ARM64:\n    exit()",
        "with unittest.mock.patch('x'):\n    pass",
        "match 1:\n    case TestCase: pass",
        "TestCase: object = object",
        "[(TestCase := object)]",
    ],
)
def test_a_patch_may_not_add(statement: str) -> None:
    first = statement.splitlines()[0]
    assert proof(MODULE, MODULE.replace("\n\n\nfor", f"\n\n{statement}\n\nfor")) == [f"adds the statement '{first}'"]


@pytest.mark.parametrize("statement", ["__test__ = False", "setUp = None", "if IS_ARM64:", "test_b = test_a"])
def test_a_patch_may_not_add_to_a_class(statement: str) -> None:
    body = " pass" if statement.endswith(":") else ""
    after = MODULE.replace("\n\n\nfor", f"\n    {statement}{body}\n\n\nfor")
    assert proof(MODULE, after) == [f"adds the statement '{statement}' of U"]


@pytest.mark.parametrize(
    "value",
    [
        "IS_MACOS and IS_ARM64",
        "IS_ARM64 or IS_MACOS",
        "IS_MACOS or IS_ARM64 or helper()",
        "not IS_MACOS",
        "not (IS_MACOS or IS_ARM64)",
        "helper()",
        "(TestCase := object)",
        "IS_MACOS or (U := None)",
        "(lambda: exit())()",
        "[exit() for _ in 'a']",
        "IS_MACOS or exit()",
        "None",
        "0",
    ],
)
def test_a_guard_only_loses_operands(value: str) -> None:
    [problem] = proof(MODULE, MODULE.replace("IS_MACOS or IS_ARM64", value))
    assert problem.startswith("changes the statement 'INVALID = IS_MACOS or IS_ARM64' to the statement 'INVALID = ")


HEADER = "import unittest\nfrom common import A, B, C, f\n"
T = "class T(unittest.TestCase):\n    def test_a(self): pass\n"
WEAK = "class T(unittest.TestCase):\n    def test_a(self): return\n"
U = T.replace("T(", "U(")


def block(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def guarded(test: str, body: str = T, orelse: str = "") -> str:
    return f"if {test}:\n{block(body)}" + (f"else:\n{block(orelse)}" if orelse else "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (guarded("not A"), guarded("True")),
        (guarded("not A"), T),
        (guarded("not A", U + T), U + T),
        (guarded("not (A or B or C)"), guarded("not (A or C)")),
        (guarded("not (A or B)"), guarded("not A")),
        (guarded("not A and not B"), guarded("not B")),
        (guarded("A and (B and C)"), guarded("A and C")),
        (guarded("not (A or (B or C))"), guarded("not (A or B)")),
        (guarded("A and B == 1 and f(C)"), guarded("f(C)")),
        (guarded("A and B", guarded("B and C")), guarded("A and B", guarded("C"))),
        (guarded("A and B", guarded("C")), guarded("A", guarded("C"))),
        (
            guarded("A and B", "import os\nX = os.sep\n'doc'\npass\n" + T),
            guarded("A", "import os\nX = os.sep\n'doc'\npass\n" + T),
        ),
        (guarded("A and B", T, "raise unittest.SkipTest('why')"), guarded("A", T, "raise unittest.SkipTest('why')")),
        (
            guarded("A or B", "print('why')\nraise unittest.SkipTest"),
            guarded("A", "print('why')\nraise unittest.SkipTest"),
        ),
        (guarded("A or B", "print('why')\nsys.exit(0)") + T, T),
        (guarded("A", "pass", T), guarded("False", "pass", T)),
        ("X = A or B\n" + guarded("not X"), "X = A\n" + guarded("not X")),
        ("X = A or B\n" + guarded("not X"), "X = False\n" + guarded("not X")),
        ("X = A or B\n" + guarded("not X"), T),
        ("X = A or B\nY = X or C\n" + guarded("not Y"), "X = A\nY = X or C\n" + guarded("not Y")),
        ("X = A or B\n" + guarded("not X") + guarded("not X", U), "X = A\n" + guarded("not X") + guarded("not X", U)),
        ("import platform\n" + guarded("platform.machine() != 'aarch64'"), T),
        (
            "import sys, platform\nX = sys.platform == 'win32' or platform.machine() == 'aarch64'\n" + guarded("not X"),
            "import sys\nX = sys.platform == 'win32'\n" + guarded("not X"),
        ),
        ("from common import D\n" + guarded("not D"), T),
        ("from common.inner import D\n" + guarded("not D"), T),
        ("from .inner import D\n" + guarded("not D"), T),
        ("from common import D\n" + guarded("D", "raise unittest.SkipTest") + T, T),
        ("import platform\nX = platform.machine()\n" + guarded("X != 'aarch64'"), T),
        (T + guarded("A") + guarded("B", U), T + guarded("A") + guarded("True", U)),
        ("def g():\n    if f:\n        T = 1\n" + guarded("A"), "def g():\n    if f:\n        T = 1\n" + T),
        (guarded("A", "if (y := f()):\n    z = y\n"), guarded("True", "if (y := f()):\n    z = y\n")),
        ("from common import D, E\n" + guarded("not (D or E)"), "from common import D\n" + guarded("not D")),
        ("# a comment\n" + guarded("not A"), guarded("not A") + "# another, of no type: # type: ignore\n"),
        ("x = '\\d'\n" + guarded("not A"), "x = '\\d'\n" + T),
    ],
)
def test_a_patch_may(before: str, after: str) -> None:
    assert proof(HEADER + before, HEADER + after) == []


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        # What a lifted guard lets in is more than tests.
        (guarded("A and B", "unittest.skip = print"), "makes the statement 'unittest.skip = print' run"),
        (guarded("A and B", "f()"), "makes the statement 'f()' run, which the guard 'A' had kept out"),
        (guarded("A and B", "f.x, Y = 1, 2"), "makes the statement 'f.x, Y = (1, 2)' run"),
        (guarded("A and B", "f[0] = 2"), "makes the statement 'f[0] = 2' run"),
        (guarded("A and B", "raise unittest.SkipTest"), "makes the statement 'raise unittest.SkipTest' run"),
        (guarded("A and B", guarded("C", "exit()")), "makes the statement 'exit()' run"),
        (guarded("A and B", "for T in f: pass"), "makes the statement 'for T in f:' run"),
        (guarded("A and B", "from common import *"), "makes * be defined, which means more than a test does"),
        (guarded("A and B", "def load_tests(*a): return a[1]"), "makes load_tests be defined, which means more"),
        (guarded("A and B", "def setUpModule(): exit()"), "makes setUpModule be defined, which means more"),
        (guarded("A and B", "__test__ = False"), "makes __test__ be defined, which means more"),
        (guarded("A and B", "range = list"), "makes range be defined, which means more"),
        (T + guarded("A and B", WEAK), "makes a second T be defined, which hides the first"),
        (T + guarded("A and B", "T = None"), "makes a second T be defined"),
        (T + guarded("A and B", "import T"), "makes a second T be defined"),
        (T + guarded("A and B", guarded("C", WEAK)), "makes a second T be defined"),
        (guarded("A and B") + WEAK, "makes a second T be defined"),
        (guarded("A and B") + "del T\n", "makes a second T be defined"),
        (guarded("A and B") + "try: f()\nexcept OSError as T: pass\n", "makes a second T be defined"),
        (guarded("A and B") + "@f(T := 1)\ndef g(): pass\n", "makes a second T be defined"),
        (guarded("A and B") + "[T := 1]\n", "makes a second T be defined"),
        (guarded("A and B") + "match f:\n    case {**T}: pass\n", "makes a second T be defined"),
        (guarded("A and B") + "match f:\n    case [*T]: pass\n", "makes a second T be defined"),
        (guarded("A and B") + "match f:\n    case T: pass\n", "makes a second T be defined"),
        (guarded("A and B") + "def g():\n    global T\n    T = 1\n", "makes a second T be defined"),
        # What it shuts out is a test.
        (guarded("A and B", T, U), "keeps a block from running that the guard 'A' had let run"),
        (guarded("A or B", T), "keeps a block from running"),
        (guarded("A or B", "f()"), "keeps a block from running"),
        (guarded("A and B", T, guarded("C", U)), "keeps a block from running"),
        ("X = A or B\n" + guarded("X"), "keeps a block from running"),
        ("X = A or B\n" + guarded("not X") + guarded("X", U), "keeps a block from running"),
        ("X = A or B\nY = not X\n" + guarded("not Y"), "keeps a block from running"),
        # More than guards use the flag.
        ("X = A or B\n@unittest.skipUnless(X, '')\n" + U + guarded("not X"), "changes the flag X, which is not for"),
        ("X = A or B\ndef g(y=X): pass\n" + guarded("not X"), "changes the flag X"),
        ("X = A or B\ndef g(): return X\n" + guarded("not X"), "changes the flag X"),
        ("X = A or B\nglobals()['X']\n" + guarded("not X"), "changes the flag X"),
        ("X = A or B\nX = X\n" + guarded("not X"), "changes the flag X"),
        ("X = A or B\n" + guarded("C", "X = B") + guarded("not X"), "changes the flag X"),
        ("X = A or B\nwhile f:\n" + block(guarded("not X")), "changes the flag X"),
        ("X = A or B\n", "changes the flag X"),
        ("load_tests = A or B\n", "changes the flag load_tests"),
        ("X = A or B\nY = 1 if X else 2\n" + guarded("not X"), "changes the statement 'Y = 1 if X else 2'"),
        ("X = A or B\n" + guarded("f(X)"), "changes the guard 'f(X)' to 'f(X)'"),
        # It is no guard.
        ("while f:\n" + block(guarded("A and B")), "changes the statement 'while f:'"),
        ("with f:\n" + block(guarded("A and B")), "changes the statement 'with f:'"),
        ("class V:\n" + block(guarded("A and B")), "changes the statement 'if A and B:' of V"),
        ("def g():\n" + block(guarded("A and B")), "changes function g"),
        ("X: bool = A or B\n" + guarded("not X"), "changes the statement 'X: bool = A or B'"),
    ],
)
def test_lifting_a_guard_may_not_do_more(before: str, problem: str) -> None:
    found = proof(HEADER + before, HEADER + re.sub("A (and|or) B", "A", before))
    assert any(line.startswith(problem) for line in found), found


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (guarded("A", "f()"), "f()\n", "makes the statement 'f()' run"),
        (
            guarded("A or B", "raise unittest.SkipTest", U),
            guarded("B", "raise f", U),
            "changes the statement 'raise unittest.SkipTest'",
        ),
        # What is dropped lets in less.
        (guarded("A and (B or C)"), guarded("A and B"), "keeps a block from running"),
        (guarded("(A or B) and C"), guarded("A"), "changes the guard '(A or B) and C' to 'A'"),
        (guarded("A and B and C"), guarded("B and A"), "changes the guard 'A and B and C' to 'B and A'"),
        # What goes is needed.
        (
            "from common import D\nD()\n" + guarded("not D"),
            "D()\n" + T,
            "removes the import of D, which is used elsewhere",
        ),
        (
            "from common import D\ngetattr(f, 'D')\n" + guarded("not D"),
            "getattr(f, 'D')\n" + T,
            "removes the import of D, which is used elsewhere",
        ),
        (
            "from other import T\nfrom common import T\n" + guarded("T", U),
            "from other import T\n" + U,
            "removes the import of T, which is used elsewhere",
        ),
        ("from common import D\n" + T, T, "removes the import of D"),
        ("from other import D\n" + guarded("not D"), T, "no longer imports the package other"),
        ("import torch_npu\n" + guarded("torch_npu.f()"), T, "no longer imports the package torch_npu"),
        (
            "X = A or B\nX()\n" + guarded("not X"),
            "X()\n" + T,
            "removes the statement 'X = A or B', which is used elsewhere",
        ),
        (guarded("(y := f()) and A"), guarded("A"), "changes the guard '(y := f()) and A' to 'A'"),
        (guarded("(y := f())"), guarded("True"), "changes the guard '(y := f())' to 'True'"),
        (guarded("(y := f())"), T, "removes the statement 'if (y := f()):'"),
        (guarded("(y := f())", "raise unittest.SkipTest"), T, "removes the statement 'if (y := f()):'"),
        # What is there is another, or elsewhere.
        (guarded("A", U, T), guarded("A", U, WEAK), "changes T.test_a"),
        (guarded("A", U, guarded("B")), guarded("A", U, guarded("B", WEAK)), "changes T.test_a"),
        ("X = A or B\n" + guarded("not X"), "Y = A\n" + guarded("not Y"), "changes the statement 'X = A or B' to"),
        (guarded("A", T, U), guarded("A", U, T), "changes class T to class U"),
        (T + guarded("A", U), guarded("A", T + U), "removes class T"),
        (T + guarded("False", U), guarded("False", U + T), "removes class T"),
        (T + "def g():\n    pass\n", "def g():\n" + block(T), "removes class T"),
        (T + U, U + T, "removes class "),
        (WEAK + T, T + WEAK, "changes T.test_a"),
        (T + T, T, "removes class T"),
        (T + guarded("A", T), T, "removes class T"),
        (T + U, T + block(U), "removes class U"),
        ("try:\n" + block(T) + "finally:\n    f()\n", T + "f()\n", "removes the statement 'try:'"),
        (
            "try:\n" + block(T) + "except f:\n" + block(U),
            "try:\n" + block(U) + "except f:\n" + block(T),
            "changes the statement 'try:'",
        ),
        *(
            (
                f"{head}:\n" + block(guarded("A and B")),
                f"{head}:\n" + block(guarded("A")),
                f"changes the statement '{head}:'",
            )
            for head in ("while f", "with f", "for x in f")
        ),
        ("match f:\n  case 1:\n" + block(T), "match f:\n  case 2:\n" + block(T), "changes the statement 'match f:'"),
        ("x = 1\n" + guarded("A", "y = 1"), guarded("A", "x = 1\ny = 1"), "removes the statement 'x = 1'"),
        ("f(\n", "f(1\n", "is for a file that Python "),
    ],
)
def test_a_patch_may_not_either(before: str, after: str, problem: str) -> None:
    found = proof(HEADER + before, HEADER + after)
    assert any(line.startswith(problem) for line in found), found


# Whatever a patch is

FUZZED = """\
import unittest
from common import A, B, C
X = A or B
Y = X or C
LIMIT = 1
if A and B or C and (A or B):
    raise unittest.SkipTest
if not X:
    class T(unittest.TestCase):
        size = LIMIT
        def test_a(self): self.assertEqual(1, LIMIT)
        @unittest.skipIf(B, "why")
        def test_b(self, n=1): pass
if B and not Y:
    class U(T): pass
elif not Y and not (A or C):
    class U(unittest.TestCase):
        def test_c(self): return
if A and (B or C):
    def g(n=2): return n
    W = A
    if W and B:
        class V(unittest.TestCase):
            def test_d(self): pass
"""
STATEMENTS = """\
pass
X = False
X = A
T = U
del T
LIMIT = 2
class T: pass
class T(unittest.TestCase):
def g(): pass
def f():
if A:
if True:
if not B:
else:
try:
finally:
while A:
for T in ():
with unittest.x:
global T
import unittest
from common import A
from common import A as B
unittest.skip = print
unittest.TestCase.assertEqual = print
raise unittest.SkipTest
exit()
return
@unittest.skip('why')
""".splitlines()
# What may stand in a guard, and what is left of it.
LIFTS = [
    (r" (or|and) (not )?(\w|\(.*?\))", ""),
    (r"(\w|\(.*?\)) (or|and) ", ""),
    (r"(?<=if ).*(?=:)", "True"),
    (r"(?<=if ).*(?=:)", "False"),
    (r"(?<== ).*[XAB].*", "False"),
    (r"(?<== ).*[XAB].*", "True"),
    (r"(?<=import ).*[A-C], |, [A-C](?=\n)", ""),
    (r"(?m)^[XYW] = .*\n", ""),
    (r"\b(or|and)\b", "and"),
    (r"\b(or|and)\b", "or"),
    (r"\b[ABCXY]\b", "not B"),
    (r"\bnot \b", ""),
]


@st.composite
def edited(draw: st.DrawFn) -> str:
    """Return FUZZED after a few edits, most of them of a guard."""
    text = FUZZED
    for _ in range(draw(st.integers(1, 4))):
        lines = text.splitlines(keepends=True) or ["\n"]
        here = draw(st.integers(0, len(lines) - 1))
        count = draw(st.integers(1, 4))
        match draw(st.sampled_from(["lift"] * 12 + ["insert", "delete", "move", "indent"])):
            case "lift":
                old, new = draw(st.sampled_from(LIFTS))
                spots = list(re.finditer(old, text))
                if spots:
                    spot = draw(st.sampled_from(spots))
                    lines = [text[: spot.start()], new, text[spot.end() :]]
            case "insert":
                lines.insert(
                    here, f"{draw(st.sampled_from(['', '    ', '        ']))}{draw(st.sampled_from(STATEMENTS))}\n"
                )
            case "delete":
                del lines[here : here + count]
            case "move":
                moved = lines[here : here + count]
                del lines[here : here + count]
                there = draw(st.integers(0, len(lines)))
                lines[there:there] = moved
            case "indent":
                some = lines[here : here + count]
                lines[here : here + count] = [line[4:] if line.startswith("    ") else f"    {line}" for line in some]
        text = "".join(lines)
    return text


def inventory(source: str, flags: dict[str, bool]) -> dict[str, object] | BaseException:
    """Return all that makes up the tests of a module on a platform with these flags, or what its import raises."""

    class TestCase:
        def assertEqual(self, first: object, second: object) -> None: ...  # noqa: N802

    def skip(reason: object) -> Any:
        return lambda thing: ("skip", reason, thing)

    stubs: dict[str, Any] = {
        "unittest": types.SimpleNamespace(
            TestCase=TestCase,
            SkipTest=unittest.SkipTest,
            skip=skip,
            skipIf=lambda condition, reason: skip(reason) if condition else lambda thing: thing,
        ),
        "common": types.SimpleNamespace(**flags),
    }
    names: dict[str, Any] = {
        "__name__": "tests",
        "__builtins__": {**vars(builtins), "__import__": lambda name, *_: stubs[name], "exit": sys.exit},
    }
    watched = [vars(stubs["unittest"]), vars(stubs["common"]), vars(TestCase)]
    untouched = [dict(part) for part in watched]
    try:
        exec(compile(source, "tests", "exec"), names)
    except BaseException as error:
        return error
    found: dict[str, object] = {"untouched": [dict(part) for part in watched] == untouched}
    for name, value in names.items():
        if isinstance(value, type):
            found[name] = [base.__name__ for base in value.__bases__]
            found |= {f"{name}.{key}": essence(part) for key, part in vars(value).items() if key[:2] != "__"}
        elif isinstance(value, types.FunctionType):
            found[name] = essence(value)
    return found


def essence(value: object) -> object:
    """Return what two functions or values have in common that do the same."""
    if isinstance(value, types.FunctionType):
        code = value.__code__
        return code.co_code, code.co_consts, code.co_names, value.__defaults__
    return [essence(part) for part in value] if isinstance(value, tuple) else value


PLATFORMS = [dict(zip("ABC", values, strict=True)) for values in itertools.product([False, True], repeat=3)]


@given(edited())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_edit_that_passes_loses_a_test_on_any_platform(text: str) -> None:
    if prove(FUZZED.encode(), text.encode()):
        return
    for flags in PLATFORMS:
        before, now = inventory(FUZZED, flags), inventory(text, flags)
        # A file that can't be imported is a finding of its run, whatever its patch; one that skips itself looks good.
        loud = isinstance(now, Exception) and not isinstance(now, unittest.SkipTest)
        if not loud and not isinstance(before, BaseException):
            assert isinstance(now, dict), now
            assert now.items() >= before.items()
