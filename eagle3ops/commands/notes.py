"""What do `runs note` and `runs delete` do and print?"""

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3ops.commands.desk import Desk
from eagle3ops.commands.output import when, write, write_json
from eagle3ops.errors import ExitCode
from eagle3ops.words import human_bytes, plain


def note(desk: Desk, args: Namespace, *, json: bool) -> int:
    """`eagle3ops runs note RUN`: add one, or without anything to say show those there are."""
    said = {name: getattr(args, name) for name in ("hypothesis", "change", "outcome")}
    given = {name: text for name, text in said.items() if text is not None}
    if not given:
        found = desk.ask("runs.notes", run=args.run)
        if json:
            write_json(found)
        elif not found["notes"]:
            sys.stderr.write(f"{plain(found['run'])}: no notes\n")
        else:
            write_notes(found["notes"])
        return ExitCode.DONE
    found = desk.ask("runs.note", run=args.run, **given)
    if json:
        write_json(found)
    else:
        sys.stderr.write(f"{plain(found['run'])}: {'noted' if found['fresh'] else 'was noted already'}\n")
    return ExitCode.DONE


def write_notes(notes: Sequence[Mapping[str, Any]]) -> None:
    """One line for each thing that was said, oldest first."""
    for one in notes:
        for name in ("hypothesis", "change", "outcome"):
            if one.get(name):
                write(f"note {when(one.get('ts'))}  {name}: {plain(one[name])}")


def delete(desk: Desk, args: Namespace, *, json: bool) -> int:
    """`eagle3ops runs delete RUN [--yes]`."""
    found = desk.ask("runs.delete", run=args.run, delete=args.delete_yes)
    if json:
        write_json(found)
        return ExitCode.DONE
    size, kept = human_bytes(found["bytes"]), "; its notes are kept" if found["notes_kept"] else ""
    if found["deleted"]:
        write(f"deleted {plain(found['run'])}, {size}{kept}")
        sys.stderr.write("  the outputs of its stages that no other run needs go with `eagle3ops runs gc`\n")
    else:
        write(f"{plain(found['path'])}, {size}, would be deleted{kept}; do it with --yes")
    return ExitCode.DONE
