"""The one entry point: parse, call, print, exit code.

Everything but argument parsing is imported where it is used, so that `--version` and a misspelt option answer at once.
"""

import errno
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from eagle3ops.arguments import build_parser
from eagle3ops.errors import Eagle3opsError, ExitCode, RequestError


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; returns the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Closed by whoever called (`>&-`): what is written goes nowhere.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (for the life of the process)
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    try:
        _refuse_empty(args)
        return _dispatch(args)
    except Eagle3opsError as error:
        sys.stderr.write(f"eagle3ops: {error}\n")
        return int(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("eagle3ops: interrupted\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever reads has seen enough (`| head`); the interpreter must not try to flush on its way out.
        sys.stdout = None
        return ExitCode.DONE
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT):
            sys.stderr.write(f"eagle3ops: {type(error).__name__}: {error}\n  -> {_keep_traceback()}\n")
        else:
            sys.stderr.write(f"eagle3ops: the output cannot be written: {error.strerror}\n")
            sys.stdout = None
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001  (the boundary: a person gets a sentence, and the traceback in a file)
        sys.stderr.write(f"eagle3ops: {type(error).__name__}: {error}\n  -> {_keep_traceback()}\n")
        return ExitCode.FAILED


def _keep_traceback() -> str:
    """Write the current traceback to a file; says where."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="eagle3ops-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exc(file=file)
    except OSError:
        return traceback.format_exc()
    return f"this is a defect of eagle3ops; the traceback is in {file.name}"


def _dispatch(args: Namespace) -> int:
    root = getattr(args, "root", None)
    json = getattr(args, "json", False)
    host = getattr(args, "host", None)
    overrides = getattr(args, "set", [])
    if args.command is not None:
        _refuse_job_options(args)
        if args.command not in ("config", "web"):
            _refuse_console_options(args, f"the command `{args.command}`")
        return _command(args, root, host, overrides, json=json)
    if args.job is None:
        return _console(args, root, host)
    _refuse_console_options(args, "--job")
    from eagle3ops.commands.jobs import Asked, run_job

    return run_job(Asked(args.job, args.spec, args.early_set, host, root, json, args.detach, args.yes, args.key))


def _command(args: Namespace, root: str | None, host: str | None, overrides: Sequence[str], *, json: bool) -> int:
    if args.command == "runs":
        from eagle3ops.commands import runs

        return runs.runs(args, root, host, json=json)
    if args.command == "incidents":
        from eagle3ops.commands import incidents

        return incidents.incidents(args, root, host, json=json)
    if args.command == "watch":
        from eagle3ops.commands import watch

        return watch.watch(args, root, json=json)
    if args.command == "diagnose":
        from eagle3ops.commands import diagnose

        return diagnose.diagnose(args, root, host, json=json)
    if args.command == "drill":
        from eagle3ops.commands import drill

        return drill.drill(args, json=json)
    if args.command in ("plan", "spec"):
        from eagle3ops.commands import runs

        return runs.plan_or_spec(args, root, host, overrides, json=json)
    if args.command == "drafters":
        from eagle3ops.commands import drafters

        return drafters.drafters(args, root, host, json=json)
    if args.command == "layers":
        from eagle3ops.commands import layers

        return layers.layers(args, json=json)
    if args.command == "verify":
        from eagle3ops.commands import verify

        return verify.verify(args, json=json)
    if args.command == "convert":
        from eagle3ops.commands import convert

        return convert.convert(args, json=json)
    if args.command == "patch":
        from eagle3ops.commands import patch

        return patch.patch(args, root, json=json)
    if args.command == "lint":
        from eagle3ops.commands import lint

        return lint.lint(args, json=json)
    if args.command == "supports":
        from eagle3ops.commands import supports

        return supports.supports_command(args, json=json)
    if args.command == "kernels":
        from eagle3ops.commands import kernels

        return kernels.kernels(args, json=json)
    if args.command == "hosts":
        from eagle3ops.commands import hosts

        return hosts.hosts(args, json=json)
    if args.command == "doctor":
        from eagle3ops.commands import doctor

        args.doctor_host = host
        return doctor.doctor(args, root, json=json)
    if args.command == "telemetry":
        from eagle3ops.commands import telemetry

        return telemetry.telemetry(args, json=json)
    if args.command == "config":
        from eagle3ops.commands import config

        return config.config(args, json=json)
    if args.command == "web":
        from eagle3ops.commands import web

        return web.web(args, root, host, json=json)
    from eagle3ops.hosts.agent import loop as agent
    from eagle3ops.operations import OPERATIONS

    return agent.main(OPERATIONS, root)


def _refuse_empty(args: Namespace) -> None:
    """`--host "$HOST"` with a variable that is not set must not mean this machine, nor `--key ""` no key."""
    for option in ("root", "host", "key", "job"):
        if getattr(args, option, None) == "":
            raise RequestError(f"--{option} is empty", remedy="is the variable that names it set?")


_HERE_ONLY = (
    "spec",
    "hosts",
    "telemetry",
    "agent",
    "config",
    "layers",
    "lint",
    "patch",
    "convert",
    "verify",
    "supports",
    "kernels",
    "watch",
    "drill",
)


def _refuse_job_options(args: Namespace) -> None:
    """Options of `--job` that stand before a command would be dropped without a word."""
    for option in ("job", "spec", "key", "detach", "yes"):
        if getattr(args, option, None):
            raise RequestError(
                f"--{option} belongs to --job NAME, not to the command `{args.command}`",
                remedy=f"put what the command takes behind it: eagle3ops {args.command} --help",
            )
    if getattr(args, "host", None) and args.command in _HERE_ONLY:
        raise RequestError(f"the command `{args.command}` takes no --host: it works on this machine")
    if args.early_set:
        raise RequestError(
            f"--set stands before the command `{args.command}`",
            remedy="put it behind: eagle3ops plan FILE --set KEY=VALUE",
        )


def _refuse_console_options(args: Namespace, what: str) -> None:
    for option in ("theme", "ascii", "read_only", "refresh"):
        if hasattr(args, option):
            raise RequestError(f"--{option.replace('_', '-')} belongs to the console, not to {what}")


def _console(args: Namespace, root: str | None, host: str | None) -> int:
    for option in ("spec", "early_set", "json", "key", "detach", "yes"):
        if getattr(args, option, None):
            sys.stderr.write(f"eagle3ops: --{option.removeprefix('early_')} needs --job NAME or a command\n")
            return ExitCode.BAD_REQUEST
    served = os.environ.get("TEXTUAL_DRIVER") == "textual.drivers.web_driver:WebDriver"
    if not served and not (sys.stdin.isatty() and sys.stdout.isatty()):
        why = "the console needs a terminal"
    elif not served and os.environ.get("TERM") in ("dumb", "unknown"):
        why = f"the console needs a terminal that can move its cursor, and TERM is {os.environ['TERM']!r}"
    else:
        from importlib import import_module

        given = {
            name: getattr(args, name) for name in ("theme", "ascii", "read_only", "refresh") if hasattr(args, name)
        }
        # Looked up at run time: the console is the only room that knows the terminal.
        return int(import_module("eagle3ops.screens.start").main(root, host or "local", given))
    sys.stderr.write(f"eagle3ops: {why}\n  -> without one use: eagle3ops --job NAME, or eagle3ops --help\n")
    return ExitCode.BAD_REQUEST


if __name__ == "__main__":
    raise SystemExit(main())
