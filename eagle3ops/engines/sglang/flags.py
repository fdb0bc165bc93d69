"""Which options does that SGLang know? Read from its source, in a third of a second, where its `--help` takes many.

0.5.14 declares them as fields of `ServerArgs`, 0.5.23 as fields of the classes in `arg_groups/fields`; both add a few
by `add_argument`. A field becomes `--its-name`, with the aliases that its `Arg` names.
"""

import ast
import difflib
import functools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from eagle3ops.errors import RequestError

_MOST_BYTES = 4 << 20
_MOST_FILES = 64
_FEWEST = 100
"""A source in which fewer are found is one that is not understood."""
_OPTION = re.compile(r"--[A-Za-z][\w-]*")


@dataclass(frozen=True, slots=True)
class Flags:
    """The options of one installation."""

    names: frozenset[str]
    choices: Mapping[str, tuple[str, ...]]
    """Option -> the values it takes, where the source lists them as they stand."""

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def meant(self, name: str) -> list[str]:
        """What argparse takes `name` for: itself, or all that it is the beginning of."""
        return [name] if name in self.names else sorted(each for each in self.names if each.startswith(name))


@dataclass(frozen=True, slots=True)
class Renamed:
    """An option that another version has under another name, or no more."""

    old: str
    new: str
    """Empty: there is none in its place."""
    gone_in: str
    why: str


@functools.cache
def renamed() -> Mapping[str, Renamed]:
    """Options that changed between the versions that were read, by their old names."""
    text = resources.files("eagle3ops.assets").joinpath("sglang_flags.toml").read_text(encoding="utf-8")
    rows = [Renamed(row["old"], row.get("new", ""), row["gone_in"], row.get("why", ""))
            for row in tomllib.loads(text)["renamed"]]  # fmt: skip
    return {row.old: row for row in rows}


def read_flags(folder: Path) -> Flags | None:
    """The options of the SGLang whose package is `folder`; None where its source is not there or not understood."""
    files = [folder / "srt/server_args.py", *sorted((folder / "srt/arg_groups/fields").glob("*.py"))[:_MOST_FILES]]
    files.append(folder / "srt/arg_groups/choices.py")
    try:
        marks = tuple((str(file), file.stat().st_mtime_ns) for file in files if file.is_file())
    except OSError:
        return None
    return _read(marks)


@functools.lru_cache(maxsize=8)
def _read(files: tuple[tuple[str, int], ...]) -> Flags | None:
    names: set[str] = set()
    choices: dict[str, tuple[str, ...]] = {}
    trees = [tree for name, _ in files if (tree := _parse(Path(name))) is not None]
    lists: dict[str, tuple[str, ...]] = {}
    for tree in trees:
        lists |= _lists(tree)
    for tree in trees:
        for found, values in _options(tree, lists):
            names.update(found)
            if values:
                choices |= dict.fromkeys(found, values)
    return Flags(frozenset(names), choices) if len(names) >= _FEWEST else None


def _parse(file: Path) -> ast.Module | None:
    try:
        with file.open("rb") as stream:
            return ast.parse(stream.read(_MOST_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _lists(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    """Lists of words that have a name in the module."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            words = _words(node.value, {})
            if words:
                found[node.targets[0].id] = words
    return found


def _words(node: ast.expr | None, lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The words of a list that stands there, or that has a name; () for anything else."""
    if isinstance(node, ast.Name):
        return lists.get(node.id, ())
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return ()
    words = [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return tuple(words) if len(words) == len(node.elts) else ()


def _options(tree: ast.Module, lists: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """(names of one option, values it takes) for all that are declared."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield from _field(node.target.id, node.annotation, lists)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            given = {each.arg: each.value for each in node.keywords}
            if names and all(name.startswith("-") for name in names):
                yield names, _words(given.get("choices"), lists)


def _field(
    name: str, annotation: ast.expr, lists: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """A field annotated as `A[type, "help"]` or `A[type, Arg(...)]`."""
    if not (
        isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id in ("A", "Annotated")
        and isinstance(annotation.slice, ast.Tuple)
    ):
        return
    kind, *about = annotation.slice.elts
    call = next((each for each in about if isinstance(each, ast.Call)), None)
    given = {each.arg: each.value for each in call.keywords} if call is not None else {}
    hidden = given.get("no_cli")
    if isinstance(hidden, ast.Constant) and hidden.value is True:
        return
    own = given.get("cli_name")
    first = own.value if isinstance(own, ast.Constant) and isinstance(own.value, str) else f"--{name.replace('_', '-')}"
    names = [first, *_words(given.get("aliases"), lists)]
    action = given.get("action")
    if isinstance(action, ast.Attribute) and action.attr == "BooleanOptionalAction":
        names += [f"--no-{each.removeprefix('--')}" for each in names]
    yield names, _words(given["choices"], lists) if "choices" in given else _literal(kind)


def _literal(kind: ast.expr) -> tuple[str, ...]:
    for node in ast.walk(kind):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            words = [each.value for each in elements if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            return tuple(words) if len(words) == len(elements) else ()
    return ()


OWNED: Mapping[str, str] = {
    "--model-path": "target.model", "--model": "target.model",
    "--port": "stages.serve.port",
    "--dtype": "engine.dtype",
    "--device": "engine.device",
    "--random-seed": "seed",
    "--tp-size": "engine.gpus", "--tensor-parallel-size": "engine.gpus",
    "--nnodes": "engine.nodes", "--node-rank": "engine.nodes",
    "--dist-init-addr": "engine.nodes", "--nccl-init-addr": "engine.nodes",
    "--speculative-algorithm": "stages.serve.speculation",
    "--speculative-draft-model-path": "stages.serve.speculation",
    "--speculative-draft-model": "stages.serve.speculation",
    "--speculative-num-steps": "stages.serve.speculation",
    "--speculative-eagle-topk": "stages.serve.speculation",
    "--speculative-num-draft-tokens": "stages.serve.speculation",
}  # fmt: skip
"""Options that are passed from a setting of the pipeline file. Given once more they would override it unseen: another
server would be measured than every record says, or none would answer at the port that is asked."""


def refuse_owned(words: Sequence[str], flags: Flags, where: str) -> None:
    """Refuse an option that a setting of the pipeline file decides, also where it is abbreviated.

    Raises:
        RequestError: with the setting.
    """
    for word in words:
        name = word.partition("=")[0]
        if not _OPTION.fullmatch(name):
            continue
        meant = flags.meant(name) or [name]
        setting = OWNED.get(meant[0]) if len(meant) == 1 else None
        if setting is not None:
            raise RequestError(
                f"{where}: {name} would override {setting}, unseen by all records", remedy=f"set {setting}"
            )
        if "--api-key" in meant[:1]:
            raise RequestError(
                f"{where}: with {name} the server would refuse what eagle3ops asks it",
                remedy="leave it out: servers listen on loopback; put a proxy before one that others are to reach",
            )


def given(words: Sequence[str], name: str) -> bool:
    """Whether a command line sets an option, by its whole name."""
    return any(word == name or word.startswith(f"{name}=") for word in words)


def check(words: Sequence[str], flags: Flags, version: str, where: str) -> None:
    """Refuse an option that this version does not know, and a value that it does not take.

    Args:
        words: of the command line, after the module's name.
        flags: what it knows.
        version: for the message.
        where: where these words come from.

    Raises:
        RequestError: with the name that is nearest, or that took its place.
    """
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if not _OPTION.fullmatch(name):
            continue
        meant = flags.meant(name)
        if len(meant) != 1:
            raise RequestError(
                f"{where}: SGLang {version} "
                + (f"cannot tell what {name} means: {', '.join(meant[:4])}" if meant else f"knows no {name}"),
                remedy=_instead(name, flags, meant),
            )
        allowed = flags.choices.get(meant[0])
        follows = words[place + 1] if place + 1 < len(words) else ""
        said = value if "=" in word else follows
        if allowed and said and not said.startswith("-") and said not in allowed:
            near = difflib.get_close_matches(said, allowed, n=1)
            raise RequestError(
                f"{where}: SGLang {version} has no {said!r} for {meant[0]}",
                remedy=f"did you mean {near[0]!r}?" if near else f"it has {', '.join(allowed)}",
            )


def _instead(name: str, flags: Flags, meant: Sequence[str]) -> str:
    change = renamed().get(name)
    if change is not None and change.new and flags.meant(change.new.partition(" ")[0]):
        return f"it is {change.new} since {change.gone_in}"
    back = next((each.old for each in renamed().values() if each.new.partition(" ")[0] == name), None)
    if back is not None and back.partition(" ")[0] in flags:
        return f"this version calls it {back}"
    if change is not None and not change.new:
        return f"leave it out: {change.why}" if change.why else "leave it out: it is gone, and nothing took its place"
    if meant:
        return "write the whole name"
    near = difflib.get_close_matches(name, sorted(flags.names), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "see python -m sglang.launch_server --help in its environment"
