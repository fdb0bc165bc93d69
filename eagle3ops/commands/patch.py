"""What does `eagle3ops patch` do? Show, apply and take back changes to an installed engine's source."""

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from eagle3ops import locations
from eagle3ops.commands.output import table, when, write, write_json
from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.patching.recipe import Recipe, find_recipe, shipped
from eagle3ops.patching.transaction import FileChange, Journal, plan
from eagle3ops.patching.trial import interpreter_of
from eagle3ops.wiring.supports.tree import Tree
from eagle3ops.words import plain


def patch(args: Namespace, root: str | None, *, json: bool) -> int:
    """Carry out one of the subcommands.

    Raises:
        RequestError: recipe, folder or journal are not as asked.
    """
    journal = Journal(locations.root(root))
    if args.patch_command == "list":
        return _list(list(shipped().values()), json=json)
    if args.patch_command == "status":
        return _status(journal, json=json)
    if args.patch_command == "log":
        return _log(journal, json=json)
    if args.patch_command == "revert":
        back = journal.revert(args.recipe, Path(args.path).absolute() if args.path else None)
        return _done("put back", back, json=json)
    if args.patch_command == "forget":
        return _done("forgotten, and left as it is", journal.forget(args.recipe), json=json)
    return _apply(args, journal, find_recipe(args.recipe), json=json)


def _done(what: str, files: list[str], *, json: bool) -> int:
    if json:
        write_json({"done": what, "files": files})
    else:
        for file in files:
            write(f"{what}: {plain(file)}")
    return ExitCode.DONE


def _list(recipes: list[Recipe], *, json: bool) -> int:
    if json:
        write_json([
            {"name": one.name, "engine": one.engine, "versions": one.versions, "title": one.title, "why": one.why,
             "instead": one.instead, "files": [str(each.path) for each in one.files]}
            for one in recipes
        ])  # fmt: skip
        return ExitCode.DONE
    for one in recipes:
        write(f"{one.name}  ({one.engine} {', '.join(one.versions)})")
        write(f"  {one.title}")
        write(f"  {one.why}")
        if one.instead:
            write(f"  instead: {one.instead}")
    return ExitCode.DONE


def _status(journal: Journal, *, json: bool) -> int:
    found = journal.standing()
    if json:
        write_json([
            {"recipe": one.recipe, "site": one.site, "applied": one.applied, "standing": one.standing,
             "files": [file for file, _, _ in one.files], "drifted": one.drifted, "under": one.under}
            for one in found
        ])  # fmt: skip
    elif not found:
        write("no patch is applied")
    else:
        rows = [(one.recipe, one.standing, when(one.applied), plain(one.site)) for one in found]
        table(("recipe", "standing", "since", "site-packages"), rows)
        for one in found:
            if one.under:
                write(f"{one.recipe} lies under {one.under}: take that one back first")
            for file in one.drifted:
                write(f"drifted: {plain(file)} is neither the patched nor the original one")
        if any(one.drifted for one in found):
            write("once the engine is installed again: eagle3ops patch forget RECIPE")
    return ExitCode.DONE


def _log(journal: Journal, *, json: bool) -> int:
    deeds = journal.deeds()
    if json:
        write_json([asdict(one) for one in deeds])
    elif not deeds:
        write("nothing was ever patched")
    else:
        rows = [(when(one.at), one.what, one.recipe, one.version or "-", plain(one.site)) for one in deeds]
        table(("when", "what", "recipe", "engine", "site-packages"), rows)
    return ExitCode.DONE


def _apply(args: Namespace, journal: Journal, recipe: Recipe, *, json: bool) -> int:
    if not args.path:
        raise RequestError("whose source?", remedy="--path SITE_PACKAGES of the engine's environment")
    site = Path(args.path).absolute()
    version = Tree(recipe.package, site / recipe.package).version
    sure = args.patch_command == "apply" and args.patch_yes
    if sure:
        python = Path(args.python) if args.python else interpreter_of(site)
        changes = journal.apply(recipe, site, python, timeout_s=args.timeout, version=version)
    else:
        changes = plan(recipe, site)
    if json:
        write_json({
            "recipe": recipe.name, "applied": sure and bool(changes), "version": version,
            "tried_in": list(recipe.versions),
            "changes": [{"file": str(one.file), "diff": one.diff} for one in changes],
        })  # fmt: skip
    else:
        _tell(recipe, changes, version, sure=sure)
    return ExitCode.DONE


def _tell(recipe: Recipe, changes: list[FileChange], version: str | None, *, sure: bool) -> None:
    if not changes:
        write(f"{recipe.name}: all of it is there already")
        return
    untried = ""
    if (
        version
        and recipe.versions
        and not any(version == one or version.startswith(f"{one}+") for one in recipe.versions)
    ):
        untried = f"this is {plain(version)}; the recipe fits, and was tried in {', '.join(recipe.versions)} only"
    if sure:
        for one in changes:
            write(f"patched: {plain(one.file)}")
        if untried:
            write(untried)
        write(f"take it back: eagle3ops patch revert {recipe.name}")
        return
    for one in changes:
        for line in one.diff.splitlines():
            write(plain(line))
    if recipe.instead:
        write(f"# instead: {recipe.instead}")
    if untried:
        write(f"# {untried}")
    write(
        "# nothing was changed; `patch apply ... --yes` does it, once the result was imported in a process of its own"
    )
