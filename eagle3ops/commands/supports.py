"""What does `eagle3ops supports` print? Whether an installed engine supports EAGLE-3 for a target at all."""

from argparse import Namespace
from textwrap import wrap

from eagle3ops.commands.output import table, write, write_json
from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.wiring.supports import Support, open_source, supports, supports_all
from eagle3ops.words import plain


def supports_command(args: Namespace, *, json: bool) -> int:
    """Print it; exit code 0 yes, 3 no (or declared and broken), 1 unknown.

    Raises:
        RequestError: no such engine, place or architecture.
    """
    if bool(args.architecture) == args.all:
        raise RequestError("either --architecture NAME or --all", remedy="`architectures` in a target's config.json")
    source = open_source(args.engine, args.path, args.platform)
    if args.all:
        found = supports_all(source)
        if json:
            write_json([each.as_json() for each in found])
        else:
            _tell_all(found)
        return ExitCode.DONE
    one = supports(source, args.architecture)
    if json:
        write_json(one.as_json())
    else:
        _tell(one)
    return code_of(one)


def code_of(one: Support) -> int:
    """What a script goes by: 0 for yes alone. What is declared and cannot work is a no, and what is not told no yes."""
    return ExitCode.DONE if one.supported == "yes" and one.wiring != "broken" else ExitCode.VERDICT_FAIL


def _headline(one: Support) -> str:
    return f"{one.supported}, but broken" if one.wiring == "broken" else one.supported


def _tell(one: Support) -> None:
    engine = f"{one.engine} {one.version or '(version not told)'}"
    write(plain(f"{_headline(one)}: EAGLE-3 for {one.architecture} in {engine}"))
    if one.class_name:
        write(plain(f"  class  {one.class_name}" + (f"  {one.file}" if one.file else "")))
    if one.how:
        write(plain(f"  how    {one.how}"))
    if one.where:
        write(plain(f"  where  {one.where}"))
    if one.wiring == "unknown":
        write("  whether the layers reach a decoder that captures is not told by the source alone")
    for note in one.notes:
        for line in wrap(plain(note), 116, initial_indent="  - ", subsequent_indent="    ", break_long_words=False):
            write(line)


def _tell_all(found: list[Support]) -> None:
    rows = [(each.architecture, _headline(each), plain(each.how or "")[:90]) for each in found]
    table(("architecture", "EAGLE-3", "how"), rows)
    yes = sum(each.supported == "yes" for each in found)
    broken = sum(each.wiring == "broken" for each in found)
    unknown = sum(each.supported == "unknown" for each in found)
    no = len(found) - yes - unknown
    write(f"{len(found)} architectures: {yes} yes ({broken} of them broken), {no} no, {unknown} unknown")
