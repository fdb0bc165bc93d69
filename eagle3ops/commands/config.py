"""What do `config path|show|schema` do?"""

import json as jsonlib
import sys
from argparse import Namespace
from dataclasses import asdict
from importlib import import_module
from typing import Any

from eagle3ops import settings
from eagle3ops.errors import ExitCode
from eagle3ops.words import plain


def given(args: Namespace) -> dict[str, Any]:
    """The settings that stand on the command line."""
    return {name: getattr(args, name) for name in ("theme", "ascii", "read_only", "refresh") if hasattr(args, name)}


def config(args: Namespace, *, json: bool) -> int:
    """`eagle3ops config ...`; returns the exit code."""
    if args.config_command == "path":
        sys.stdout.write(f"{settings.config_file()}\n")
        return ExitCode.DONE
    if args.config_command == "schema":
        from eagle3ops.settings.file import json_schema

        schema = json_schema()
        # Looked up at run time: only the console knows its actions and themes.
        schema = import_module("eagle3ops.screens.choices").in_schema(schema)
        sys.stdout.write(jsonlib.dumps(schema, indent=2, ensure_ascii=False) + "\n")
        return ExitCode.DONE
    resolved = settings.resolve(given(args))
    if resolved.settings.keymap or resolved.settings.theme:
        import_module("eagle3ops.screens.choices").check(resolved)
    # By way of JSON, so that a command is a list as in the file.
    rows = list(_rows(jsonlib.loads(jsonlib.dumps(asdict(resolved.settings)))))
    if json:
        found = [{"name": name, "value": value, "from": resolved.origin(name)} for name, value in rows]
        sys.stdout.write(
            jsonlib.dumps({"file": str(resolved.path), "settings": found}, indent=2, ensure_ascii=False) + "\n"
        )
        return ExitCode.DONE
    told = [
        (name, plain(jsonlib.dumps(value, ensure_ascii=False)), plain(resolved.origin(name))) for name, value in rows
    ]
    widths = [max(len(row[column]) for row in told) for column in range(2)]
    for name, value, origin in told:
        sys.stdout.write(f"{name.ljust(widths[0])}  {value.ljust(widths[1])}  {origin}\n")
    if not resolved.path.exists():
        sys.stderr.write(f"{resolved.path} does not exist: nothing was changed there yet\n")
    return ExitCode.DONE


def _rows(data: dict[str, Any], before: str = "") -> Any:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _rows(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
