"""Is a patch whole and importable, or not there at all, whatever the recipe and whenever it is killed?"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3ops import cli
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.outputs.ops_patches import journal_below
from eagle3ops.patching import transaction
from eagle3ops.patching.edit import PatchError, apply_edits
from eagle3ops.patching.installed import patches_of
from eagle3ops.patching.recipe import KINDS, Recipe, RecipeError, parse_recipe, shipped
from eagle3ops.patching.transaction import Journal, plan
from eagle3ops.patching.trial import TrialFailed, try_import

MODEL = '''"""A toy engine's model."""

import math  # kept
from collections import OrderedDict


class Inner:
    def __init__(self):
        self.norm = math.sqrt(4)   # odd  spacing stays

    def forward(self, x):
        residual = None
        for i in range(3):
            # a comment in the loop
            x = x + i
        return x


class Outer(
    Inner,
):
    """Wraps."""

    def other(self): return OrderedDict()
'''
RECIPE = '''
name = "toy"
title = "t"
why = "w"
engine = "toy"
package = "toyengine"
versions = ["1.0"]

[[file]]
path = "toyengine/model.py"

[[file.edit]]
kind = "import"
code = "import json"

[[file.edit]]
kind = "base"
class = "Outer"
base = "dict"

[[file.edit]]
kind = "statement"
scope = "Inner.forward"
find = "x = x   +   i"
where = "before"
code = """
if i in self.captured:
    self.seen.append(x)
"""

[[file.edit]]
kind = "statement"
scope = "Inner.__init__"
find = "self.norm = math.sqrt(4)"
where = "after"
code = "self.captured, self.seen = [1], []"

[[file.edit]]
kind = "method"
class = "Outer"
code = """
def more(self):
    return json.dumps(self.seen)
"""
'''
SECOND = """
[[file]]
path = "toyengine/other.py"

[[file.edit]]
kind = "import"
code = "import json"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages with a toy engine."""
    package = tmp_path / "site" / "toyengine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(MODEL)
    (package / "other.py").write_text("x = 1\n")
    return package.parent


def asked(site: Path, code: str) -> str:
    """What the engine as it is on the disk says."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{textwrap.dedent(code)}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_patch_is_applied_once_and_taken_back_to_the_byte(site: Path, tmp_path: Path) -> None:
    recipe, journal = parse_recipe(RECIPE, "toy.toml"), Journal(tmp_path / "root")
    model = site / "toyengine" / "model.py"
    model.chmod(0o640)
    changes = journal.apply(recipe, site, Path(sys.executable))
    assert [one.file for one in changes] == [model]
    assert model.stat().st_mode & 0o777 == 0o640
    text = model.read_text()
    for kept in (
        "# kept",
        "self.norm = math.sqrt(4)   # odd  spacing stays",
        "# a comment in the loop",
        "def other(self): return",
    ):
        assert kept in text
    assert asked(site, "from toyengine.model import Outer; o = Outer(); o.forward(0); print(o.more())") == "[0]"
    assert plan(recipe, site) == []
    assert journal.apply(recipe, site, Path(sys.executable)) == []
    assert [(one.recipe, one.standing) for one in journal.standing()] == [("toy", "applied")]
    assert journal.revert("toy") == [str(model)]
    assert model.read_text() == MODEL
    assert journal.standing() == []
    with pytest.raises(RequestError, match="not applied"):
        journal.revert("toy")


def test_an_upgrade_is_seen_and_nothing_is_put_back_over_it(site: Path, tmp_path: Path) -> None:
    recipe, journal = parse_recipe(RECIPE, "toy.toml"), Journal(tmp_path / "root")
    journal.apply(recipe, site, Path(sys.executable))
    (site / "toyengine" / "model.py").write_text("upgraded = True\n")
    assert [one.standing for one in journal.standing()] == ["drifted"]
    with pytest.raises(RequestError, match="upgrade"):
        journal.revert("toy")
    assert (site / "toyengine" / "model.py").read_text() == "upgraded = True\n"
    journal.forget("toy")
    assert journal.standing() == []


def test_a_patch_under_another_is_not_taken_for_an_upgrade(site: Path, tmp_path: Path) -> None:
    journal, model = Journal(tmp_path / "root"), site / "toyengine" / "model.py"
    journal.apply(parse_recipe(RECIPE, "toy.toml"), site, Path(sys.executable))
    below = model.read_bytes()
    over = """
name = "over"
title = "over"
why = "to try"
engine = "sglang"
package = "toyengine"
versions = ["1.0"]
[[file]]
path = "toyengine/model.py"
[[file.edit]]
kind = "method"
class = "Outer"
code = "def third(self): return 3"
"""
    journal.apply(parse_recipe(over, "over.toml"), site, Path(sys.executable))
    stands = {one.recipe: (one.standing, one.drifted, one.under) for one in journal.standing()}
    assert stands == {"toy": ("applied", (), "over"), "over": ("applied", (), "")}
    patched = model.read_bytes()
    with pytest.raises(RequestError, match="over was applied over toy"):
        journal.revert("toy")
    with pytest.raises(RequestError, match="nothing to forget"):
        journal.forget("toy")
    assert model.read_bytes() == patched
    model.write_text("upgraded = True\n")
    assert {one.standing for one in journal.standing()} == {"drifted"}
    model.write_bytes(patched)
    journal.revert("over")
    assert model.read_bytes() == below
    journal.revert("toy")
    assert model.read_text() == MODEL


def test_the_command_says_what_it_did(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "toyengine/version.py").write_text('__version__ = "2.0"\n')
    (tmp_path / "toy.toml").write_text(RECIPE)
    model, root = site / "toyengine/model.py", ["--root", str(tmp_path / "root")]
    apply = ["patch", "apply", str(tmp_path / "toy.toml"), "--path", str(site), "--python", sys.executable, *root]

    def told(*arguments: str) -> str:
        assert cli.main(list(arguments)) == 0
        return capsys.readouterr().out

    assert "this is 2.0; the recipe fits, and was tried in 1.0 only" in told(*apply)
    assert "tried in 1.0 only" in told(*apply, "--yes")
    assert f"put back: {model}" in told("patch", "revert", "toy", *root)
    told(*apply, "--yes")
    assert json.loads(told("patch", "revert", "toy", "--json", *root))["files"] == [str(model)]
    told(*apply, "--yes")
    model.write_text("upgraded = True\n")
    assert f"drifted: {model}" in told("patch", "status", *root)
    assert str(model) in told("patch", "forget", "toy", *root)
    assert "no patch" in told("patch", "status", *root)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("class Outer(\n    Inner,\n)", "class Other(Inner)"), "class Outer stands there 0 times"),
        (("x = x + i", "x += i"), "not once"),
        (("x = x + i", "x = x + i\n            x = x + i"), "2 times"),
        (("def other(self): return", "def more(self): return"), "in another form"),
        (("def forward", "def backward"), "Inner.forward stands there 0 times"),
        (("class Inner", "class Inner("), "cannot be parsed"),
    ],
)
def test_a_recipe_that_does_not_fit_changes_nothing(
    change: tuple[str, str], word: str, site: Path, tmp_path: Path
) -> None:
    model = site / "toyengine" / "model.py"
    model.write_text(MODEL.replace(*change))
    before = model.read_bytes()
    with pytest.raises(PatchError, match=word):
        Journal(tmp_path / "root").apply(parse_recipe(RECIPE, "toy.toml"), site, Path(sys.executable))
    assert model.read_bytes() == before


def test_what_would_not_import_is_not_applied(site: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "root")
    recipe = parse_recipe(RECIPE.replace("import json", "import no_such_module_anywhere"), "toy.toml")
    with pytest.raises(TrialFailed, match="no_such_module_anywhere"):
        journal.apply(recipe, site, Path(sys.executable))
    assert (site / "toyengine" / "model.py").read_text() == MODEL
    assert journal.standing() == []
    with pytest.raises(TrialFailed, match="cannot be run"):
        try_import(site, tmp_path / "nopython", {"toyengine.model": (site / "toyengine/model.py", MODEL)})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('code = "import json"', 'code = "from math import sin,"', ("edit 1", "line 1", "trailing comma")),
        ('code = "import json"', 'code = "print(1)"', ("no import",)),
        ("self.seen.append(x)", "self.seen.append(x", ("edit 3", "no valid Python")),
        ('find = "x = x   +   i"', 'find = "a = 1; b = 2"', ("2 statements",)),
        ('where = "before"', 'where = "beside"', ("before, after, replace",)),
        ("def more(self):\n    return json.dumps(self.seen)", "x = 1", ("not one method",)),
        ('base = "dict"', 'base = "dict,"', ("edit 2",)),
        ('path = "toyengine/model.py"', 'path = "toyengine/../../etc/x.py"', ("path",)),
        ('path = "toyengine/model.py"', 'path = "/etc/x.py"', ("path",)),
        ('kind = "base"', 'kind = "bass"', ("bass", "import, base")),
        ('title = "t"', 'titel = "t"', ("titel",)),
        ('name = "toy"', 'name = "../toy"', ("name",)),
        ('why = "w"', "why = 3", ("why",)),
    ],
)
def test_a_wrong_recipe_is_refused_with_its_place(old: str, new: str, words: tuple[str, ...]) -> None:
    assert old in RECIPE
    with pytest.raises(RecipeError) as refusal:
        parse_recipe(RECIPE.replace(old, new), "toy.toml")
    for word in ("toy.toml", *words):
        assert word in f"{refusal.value} {refusal.value.remedy}"


PIECES = [
    "pass", "return x", "x = 1,", "import os", "def f(): pass", "if x:\n    pass", "from a import b,", "x = (", "\t",
    "yield x", "await x", "class C: pass", "raise", "@d\ndef g(self):\n    return 1", "é = 'ü'", "x = '''\n'''", "",
]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.fixed_dictionaries({
            "kind": st.sampled_from(["import", "base", "method", "statement", "x"]),
            "class": st.sampled_from(["Outer", "Inner", "None", "1"]),
            "base": st.sampled_from(["dict", "a.b", "(", "x,"]),
            "scope": st.sampled_from(["Inner.forward", "Inner.__init__", "Outer", "forward", ""]),
            "find": st.sampled_from(["residual = None", "return x", *PIECES]),
            "where": st.sampled_from(["before", "after", "replace", "under"]),
            "code": st.sampled_from(PIECES) | st.text(max_size=20),
        }),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_whatever_the_recipe_the_source_stays_python(edits: list[dict[str, str]]) -> None:
    lines = [
        'name = "fuzz"\ntitle = "t"\nwhy = "w"\nengine = "e"\npackage = "toyengine"',
        '[[file]]\npath = "toyengine/m.py"',
    ]
    for edit in edits:
        keys = ("kind", *KINDS.get(edit["kind"], ()))
        lines.append("[[file.edit]]\n" + "\n".join(f"{key} = {json.dumps(edit[key])}" for key in keys))
    edited = None
    with contextlib.suppress(Eagle3opsError):
        recipe = parse_recipe("\n".join(lines), "fuzz.toml")
        edited = apply_edits(MODEL, recipe.files[0].edits, "m.py")
    if edited is None:
        return
    compile(edited.text, "m.py", "exec")
    assert apply_edits(edited.text, (), "m.py").text == edited.text


def apply_and_die(recipe: Recipe, root: Path, site: Path, steps: int) -> bool:
    """Apply in a child that kills itself before its so many-th line of the transaction; was it killed?"""
    child = os.fork()
    if child == 0:
        left = steps

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename != transaction.__file__:
                return None
            left -= event == "line"
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        code = 1
        try:
            vars(transaction)["try_import"] = lambda *_, **__: None
            sys.settrace(trace)
            Journal(root).apply(recipe, site, Path(sys.executable))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.waitstatus_to_exitcode(status) != 0


def test_a_kill_at_any_moment_leaves_the_old_or_the_new(site: Path, tmp_path: Path) -> None:
    """Killed later and later, until it gets through; after each the next look puts everything right."""
    recipe = parse_recipe(RECIPE + SECOND, "toy.toml")
    old = {site / "toyengine" / "model.py": MODEL.encode(), site / "toyengine" / "other.py": b"x = 1\n"}
    new = {one.file: one.after for one in plan(recipe, site)}
    mixed = steps = 0
    killed = True
    while killed:
        steps += 3
        root = tmp_path / str(steps)
        killed = apply_and_die(recipe, root, site, steps)
        now = {file: file.read_bytes() for file in old}
        assert all(content in (old[file], new[file]) for file, content in now.items())
        mixed += now not in (old, new)
        journal = Journal(root)
        with journal.alone():
            standing = [one.standing for one in journal.standing()]
        after = {file: file.read_bytes() for file in old}
        assert after in (old, new)
        assert standing == (["applied"] if after == new else [])
        if after == new:
            journal.revert("toy")
            assert {file: file.read_bytes() for file in old} == old
    assert steps > 50
    assert mixed >= 1


def test_the_journal_tells_every_deed_and_how_the_rest_stands(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, recipe = Journal(tmp_path), parse_recipe(RECIPE, "toy")
    python = Path(sys.executable)
    journal.apply(recipe, site, python, version="1.0")
    journal.revert("toy")
    journal.apply(recipe, site, python, version="1.1")
    (site / "toyengine" / "model.py").write_text("# an upgrade\n")
    deeds = journal.deeds()
    assert [(one.what, one.version) for one in deeds] == [("applied", "1.0"), ("reverted", ""), ("applied", "1.1")]
    assert deeds == sorted(deeds, key=lambda one: one.at)
    assert {one.files for one in deeds} == {(str(site / "toyengine" / "model.py"),)}
    answer = journal_below(tmp_path)
    stands = [(one["recipe"], one["standing"], one["version"]) for one in answer["standing"]]
    assert stands == [("toy", "drifted", "1.1")]
    assert [one["what"] for one in answer["deeds"]] == ["applied", "reverted", "applied"]
    json.dumps(answer)
    assert cli.main(["patch", "log", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("applied") == 2
    assert "reverted" in said
    # One that was cut off stands there until it is taken back, and once after.
    with journal.file.open("a") as file:
        line = {"event": "prepared", "recipe": "toy", "site": "/x", "files": [["/x/a.py", "0", "1"]], "at": 1.0}
        file.write(json.dumps(line) + "\n")
    assert journal.deeds()[-1].what == "prepared"
    with journal.alone():
        assert [one.what for one in journal.deeds()][-1:] == ["taken back"]


def test_the_patches_of_an_engine_are_those_in_its_environment(site: Path, tmp_path: Path) -> None:
    journal, recipe = Journal(tmp_path), parse_recipe(RECIPE, "toy")
    home = tmp_path / "venv"
    inside = home / "lib" / "python3.12" / "site-packages"
    inside.parent.mkdir(parents=True)
    site.rename(inside)
    (home / "bin").mkdir()
    (home / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "link").symlink_to(home)
    journal.apply(recipe, inside, Path(sys.executable))
    for python in (home / "bin" / "python", tmp_path / "link" / "bin" / "python"):
        assert [one.recipe for one in patches_of(tmp_path, str(python))] == ["toy"]
    assert patches_of(tmp_path, None) == []
    assert patches_of(tmp_path, str(tmp_path / "other" / "bin" / "python")) == []
    journal.revert("toy")
    assert patches_of(tmp_path, str(home / "bin" / "python")) == []


def test_two_at_once_take_turns(site: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "root")
    command = [sys.executable, "-m", "eagle3ops", "--root", str(tmp_path / "root"), "patch", "apply"]
    recipe = tmp_path / "toy.toml"
    recipe.write_text(RECIPE)
    runs = [
        subprocess.Popen([*command, str(recipe), "--path", str(site), "--python", sys.executable, "--yes"],
                         stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    told = sorted(run.communicate(timeout=60)[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert "patched" in told[0] or "patched" in told[1]
    assert sum("there already" in one for one in told) == 1
    assert [one.standing for one in journal.standing()] == ["applied"]


def test_the_journal_reads_over_what_is_torn(site: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "root")
    journal.apply(parse_recipe(RECIPE, "toy.toml"), site, Path(sys.executable))
    with journal.file.open("ab") as file:
        file.write(b'{"event": "app')
    assert [one.standing for one in journal.standing()] == ["applied"]
    journal.revert("toy")
    assert journal.standing() == []


def test_every_shipped_recipe_is_sound() -> None:
    assert len(shipped()) >= 2
    for recipe in shipped().values():
        assert recipe.instead
        assert recipe.versions


TREES = [Path(name) for name in os.environ.get("EAGLE3OPS_ENGINE_TREES", "").split(os.pathsep) if name]
"""Folders site-packages of engines; their sources are read, nothing in them is changed."""


@pytest.mark.sglang
@pytest.mark.skipif(not TREES, reason="EAGLE3OPS_ENGINE_TREES names no site-packages of engines")
def test_the_shipped_recipes_fit_the_engines() -> None:
    fitted = 0
    for recipe in shipped().values():
        for tree in TREES:
            if (tree / recipe.package).is_dir():
                changes = plan(recipe, tree)
                assert changes
                fitted += 1
    assert fitted
