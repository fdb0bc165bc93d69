"""Which words does the command line take? One parser, for people and for `--help`; nothing is imported for it."""

from argparse import (
    SUPPRESS,
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    RawDescriptionHelpFormatter,
    _SubParsersAction,
)
from collections.abc import Callable
from typing import TypeVar

from eagle3ops import __version__

N = TypeVar("N", int, float)

EPILOG = """\
exit codes: 0 done; 1 a job failed; 2 the request is wrong; 3 a verdict is FAIL or UNDECIDED; 4 stopped by the watchdog;
5 host unreachable; 6 refused by a forecast or a lease; 130 interrupted

without arguments the console opens; with --job NAME the job runs headless ("pipeline" runs all stages)
"""


def build_parser() -> ArgumentParser:
    """The command line."""
    common = ArgumentParser(add_help=False)
    common.add_argument("--root", metavar="DIR", default=SUPPRESS, help="folder of runs and stage outputs")
    common.add_argument("--json", action="store_true", default=SUPPRESS, help="machine-readable, on standard output")
    common.add_argument(
        "--host", metavar="HOST", default=SUPPRESS, help="local, a name from `hosts list`, or ssh://user@host:port"
    )
    settings = ArgumentParser(add_help=False)
    settings.add_argument("--set", metavar="KEY=VALUE", action="append", default=SUPPRESS, help="override one setting")
    early = ArgumentParser(add_help=False)
    early.add_argument(
        "--set", dest="early_set", metavar="KEY=VALUE", action="append", default=[], help="override one setting"
    )

    look = ArgumentParser(add_help=False)
    console = look.add_argument_group("the console", "each has a setting in config.yaml, see `config show`")
    console.add_argument("--theme", metavar="NAME", default=SUPPRESS, help="colours, such as nord or ansi-dark")
    console.add_argument("--ascii", action=BooleanOptionalAction, default=SUPPRESS, help="draw with ASCII only")
    console.add_argument(
        "--read-only", action=BooleanOptionalAction, default=SUPPRESS, help="look, and end or resume nothing"
    )
    console.add_argument(
        "--refresh", type=float, metavar="S", default=SUPPRESS, help="seconds between two readings of the runs"
    )

    parser = ArgumentParser(
        prog="eagle3ops",
        description="The terminal operations console for EAGLE-3 speculative decoding",
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        parents=[common, early, look],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"eagle3ops {__version__}")
    parser.add_argument("--job", metavar="NAME", help="run a job without the console")
    parser.add_argument("--spec", metavar="FILE", help="pipeline file, or the name of a bundled one (demo)")
    parser.add_argument(
        "--key", metavar="KEY", help="start at most one run for this key; again, it is followed, not started anew"
    )
    parser.add_argument("--detach", action="store_true", help="start the run and do not follow it")
    parser.add_argument(
        "--yes", action="store_true", help="start what a forecast or an earlier verdict advises against"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    plan = commands.add_parser("plan", parents=[common, settings], help="what would run, what is done, and forecasts")
    plan.add_argument("file", nargs="?", help="pipeline file, or the name of a bundled one (demo)")
    plan.add_argument("--spec", dest="plan_spec", metavar="FILE", help="the same file, named as for --job")
    plan.add_argument("--job", dest="plan_job", metavar="NAME", default="pipeline", help="only this stage")

    spec = commands.add_parser("spec", help="check a pipeline file, or print its JSON Schema")
    spec_commands = spec.add_subparsers(dest="spec_command", metavar="COMMAND", required=True)
    spec_commands.add_parser("schema", help="print the JSON Schema")
    check = spec_commands.add_parser("check", parents=[common, settings], help="check a file and print it resolved")
    check.add_argument("file", help="pipeline file, or the name of a bundled one")

    runs = commands.add_parser("runs", help="past and present runs")
    runs_commands = runs.add_subparsers(dest="runs_command", metavar="COMMAND", required=True)
    runs_commands.add_parser("list", parents=[common], help="all runs")
    for name, text in (
        ("show", "one run in full"),
        ("follow", "tell a run's events until it ends"),
        ("cancel", "end a run that is going on"),
        ("wiring", "which layers each side reads, what verify says, what to do"),
    ):
        command = runs_commands.add_parser(name, parents=[common], help=text)
        command.add_argument("run", help="id, the start or end of one, or `last`")
    resume = runs_commands.add_parser("resume", parents=[common], help="take a run up again where it stopped")
    resume.add_argument("run", help="id, the start or end of one, or `last`")
    resume.add_argument(
        "--yes",
        dest="resume_yes",
        action="store_true",
        help="go on with what a forecast or an earlier verdict advises against",
    )
    resume.add_argument("--detach", dest="resume_detach", action="store_true", help="do not follow it")
    diff = runs_commands.add_parser("diff", parents=[common], help="settings, versions and figures that differ")
    diff.add_argument("run")
    diff.add_argument("other")
    note = runs_commands.add_parser("note", parents=[common], help="write down what was expected, changed, found")
    note.add_argument("run", help="id, the start or end of one, or `last`")
    for name, text in (
        ("hypothesis", "what was expected, and why"),
        ("change", "what was done differently"),
        ("outcome", "what came of it"),
    ):
        note.add_argument(f"--{name}", metavar="TEXT", help=text)
    delete = runs_commands.add_parser("delete", parents=[common], help="delete one run; its notes are kept")
    delete.add_argument("run", help="id, or the start or end of one")
    delete.add_argument(
        "--yes", dest="delete_yes", action="store_true", help="delete; without it only say what would go"
    )
    gc = runs_commands.add_parser("gc", parents=[common], help="delete old runs and outputs that no run needs")
    gc.add_argument("--keep", type=_count, metavar="N", default=20, help="keep the newest N runs (20)")
    gc.add_argument("--older-than", type=_days, metavar="DAYS", help="delete only what is older, in days")
    gc.add_argument("--yes", dest="gc_yes", action="store_true", help="delete; without it only say what would go")
    incidents = commands.add_parser("incidents", parents=[common], help="what went wrong, what shows it, what to do")
    incidents.add_argument("run", nargs="?", help="of one run: id, the start or end of one, or `last`")
    incidents.add_argument("--runs", type=_count, metavar="N", default=20, help="of the newest N runs (20)")
    incidents.add_argument("--all", action="store_true", help="also those that are over")
    diagnose = commands.add_parser(
        "diagnose", parents=[common], help="the one cause in many logs, or that there is none"
    )
    diagnose.add_argument("files", nargs="*", metavar="FILE", help="log files of one failure, of all ranks and hosts")
    diagnose.add_argument("--run", dest="diagnose_run", metavar="RUN", help="the logs of a run: id, or `last`")
    _add_drill(commands, common)
    _add_watch(commands, common)
    _add_drafters(commands, common)
    _add_layers(commands)
    _add_verify(commands)
    _add_patch(commands, common)
    convert = commands.add_parser("convert", help="a drafter's checkpoint in another engine's form")
    convert.add_argument("drafter", help="folder of the checkpoint")
    convert.add_argument("--target", required=True, metavar="DIR", help="folder of the target, with its config.json")
    convert.add_argument("--to", required=True, choices=("sglang", "vllm", "both"), help="who is to serve it")
    convert.add_argument("--out", required=True, metavar="DIR", help="a new folder")
    convert.add_argument(
        "--from", dest="form", metavar="FORM", help="sglang, specforge, modelopt, vllm, speculators ..."
    )
    convert.add_argument("--sglang-version", default="0.5.23", metavar="V", help="that is to serve it (0.5.23)")
    convert.add_argument("--vllm-version", default="0.32.0", metavar="V", help="that is to serve it (0.32.0)")
    convert.add_argument("--json", action="store_true", default=SUPPRESS, help="machine-readable, on standard output")
    lint = commands.add_parser("lint", help="what is wrong with a drafter's checkpoint, for a target and an engine")
    lint.add_argument("drafter", help="folder of the checkpoint")
    lint.add_argument("--target", required=True, metavar="DIR", help="folder of the target, with its config.json")
    lint.add_argument("--engine", required=True, help="sglang, vllm or reference")
    lint.add_argument("--engine-version", metavar="V", help="such as 0.5.14")
    lint.add_argument("--json", action="store_true", default=SUPPRESS, help="machine-readable, on standard output")
    _add_supports(commands)
    _add_kernels(commands)
    _add_hosts(commands, common)
    commands.add_parser("doctor", parents=[common], help="what this machine, or a host, has and lacks")
    _add_telemetry(commands, common)
    config = commands.add_parser("config", help="the settings of the console")
    of_config = config.add_subparsers(dest="config_command", metavar="COMMAND", required=True)
    of_config.add_parser("path", help="where the file is, or would be")
    of_config.add_parser("show", parents=[common, look], help="every setting, and where it comes from")
    of_config.add_parser("schema", help="print the JSON Schema of the file")
    web = commands.add_parser("web", parents=[common, look], help="the console in a browser on this machine")
    web.add_argument("--port", type=_port, metavar="N", help="(7333, or the next that is free); 0 takes any")
    web.add_argument("--listen", metavar="ADDRESS", default="127.0.0.1", help="another loopback address, such as ::1")
    agent = commands.add_parser("agent", description="The far end of a console: reads requests, answers, streams.")
    agent.add_argument("--root", metavar="DIR", default=SUPPRESS, help="folder of runs and stage outputs")
    return parser


def _add_watch(commands: "_SubParsersAction[ArgumentParser]", common: ArgumentParser) -> None:
    watch = commands.add_parser(
        "watch",
        parents=[common],
        help="guard what was started elsewhere: say what hangs, collect evidence, end nothing",
    )
    whom = watch.add_mutually_exclusive_group(required=True)
    whom.add_argument("--pid", dest="watch_pid", type=_count, metavar="N", help="a process and all that it started")
    whom.add_argument("--url", dest="watch_url", metavar="URL", help="the server on this machine that answers there")
    whom.add_argument("--run", dest="watch_run", metavar="RUN", help="a run: id, the start or end of one, or `last`")
    watch.add_argument("--stage", dest="watch_stage", metavar="NAME", default="", help="only this stage of the run")
    watch.add_argument(
        "--log", dest="watch_log", metavar="FILE", action="append", default=[], help="a log besides those it writes to"
    )
    watch.add_argument(
        "--deadline", dest="watch_deadline", metavar="PHASE=SECONDS", action="append", default=[],
        help="how long a phase may take; 0 takes the limit away",
    )  # fmt: skip
    watch.add_argument("--evidence", dest="watch_evidence", metavar="DIR", help="where incidents get their folders")
    watch.add_argument("--for", dest="watch_seconds", type=_seconds, metavar="SECONDS", help="leave after so long")
    watch.add_argument(
        "--probe", dest="watch_probe", action=BooleanOptionalAction, default=True, help="ask its server for tokens"
    )


def _add_drill(commands: "_SubParsersAction[ArgumentParser]", common: ArgumentParser) -> None:
    drill = commands.add_parser(
        "drill", parents=[common], help="break something on purpose and see whether the watchdog names it"
    )
    drill.add_argument(
        "names", nargs="*", metavar="NAME", help="drills, or `faults`: all of them, `healthy`: what must raise no alarm"
    )
    drill.add_argument("--list", dest="drill_list", action="store_true", help="all drills, and which are possible here")
    drill.add_argument(
        "--deadline-scale", type=float, metavar="F", default=1.0, help="factor on the deadlines of phases (1)"
    )
    drill.add_argument(
        "--for", dest="drill_for", type=float, metavar="S", help="how long healthy ones are watched in all (600)"
    )
    drill.add_argument("--keep", metavar="DIR", help="where logs and evidence are kept; by default a new folder")


def _add_drafters(commands: "_SubParsersAction[ArgumentParser]", common: ArgumentParser) -> None:
    drafters = commands.add_parser("drafters", help="what was benchmarked, and which drafter a target is served with")
    of_drafters = drafters.add_subparsers(dest="drafters_command", metavar="COMMAND", required=True)
    of_drafters.add_parser("list", parents=[common], help="every run with a finished benchmark")
    show = of_drafters.add_parser("show", parents=[common], help="what is promoted, its launch line, and its history")
    promote = of_drafters.add_parser("promote", parents=[common], help="serve a target with the drafter of a run")
    promote.add_argument("run", help="id, the start or end of one, or `last`")
    promote.add_argument("--setting", metavar="S/K/D", help="steps/topk/draft tokens, as timed; by default the best")
    promote.add_argument("--force", action="store_true", help="although the gate refuses; needs --reason")
    back = of_drafters.add_parser("rollback", parents=[common], help="go back to what was promoted before")
    for command in (promote, back):
        command.add_argument("--reason", metavar="TEXT", help="why; it is recorded")
    for command in (show, back):
        command.add_argument("target", nargs="?", help="its name, or the beginning of its fingerprint")


def _add_patch(commands: "_SubParsersAction[ArgumentParser]", common: ArgumentParser) -> None:
    patch = commands.add_parser("patch", help="change an installed engine's source, whole or not at all, and back")
    of_patch = patch.add_subparsers(dest="patch_command", metavar="COMMAND", required=True)
    of_patch.add_parser("list", parents=[common], help="the recipes that come with eagle3ops")
    of_patch.add_parser("status", parents=[common], help="what is applied, and what an upgrade has replaced")
    of_patch.add_parser(
        "log", parents=[common], help="what was ever patched and taken back, where, when, by which recipe"
    )
    for name, text in (
        ("show", "what a recipe would change, as a diff"),
        ("apply", "change it; without --yes the same as show"),
        ("revert", "put the originals back, byte by byte"),
        ("forget", "take a patch out of the journal that an upgrade has replaced"),
    ):
        command = of_patch.add_parser(name, parents=[common], help=text)
        command.add_argument(
            "recipe", help="a name from `patch list`" + (", or a .toml file" * (name in ("show", "apply")))
        )
        if name != "forget":
            command.add_argument("--path", metavar="DIR", help="site-packages of the engine's environment")
        if name == "apply":
            command.add_argument("--python", metavar="FILE", help="the engine's interpreter (that of the environment)")
            command.add_argument("--timeout", type=_seconds, default=600.0, metavar="S", help="for the import (600)")
            command.add_argument("--yes", dest="patch_yes", action="store_true", help="change it")


def _add_verify(commands: "_SubParsersAction[ArgumentParser]") -> None:
    verify = commands.add_parser("verify", help="start an engine and see what it would feed a drafter")
    verify.add_argument("--target", required=True, metavar="DIR", help="folder of the target")
    verify.add_argument(
        "--drafter", metavar="DIR", help="whose config names the layers; without it the engine's default"
    )
    verify.add_argument(
        "--trained-on", metavar="I,J,K", help="boundaries that training used: k = output of layer k - 1"
    )
    verify.add_argument("--engine", required=True, help="sglang, vllm or reference")
    verify.add_argument("--python", metavar="FILE", help="the Python that has the engine (this one)")
    verify.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    verify.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    verify.add_argument(
        "--max-error", type=float, metavar="E", help="relative error that passes, where you measured it"
    )
    verify.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    verify.add_argument("--json", action="store_true", default=SUPPRESS, help="machine-readable, on standard output")


def _add_layers(commands: "_SubParsersAction[ArgumentParser]") -> None:
    layers = commands.add_parser("layers", help="which tensors an engine will really capture for a drafter")
    layers.add_argument("--engine", required=True, help="sglang, vllm, reference, or a trainer")
    layers.add_argument("--engine-version", metavar="V", help="such as 0.5.14")
    layers.add_argument("--model-class", metavar="C", default="*", help="of the target: LlamaForCausalLM ...")
    layers.add_argument("--num-layers", type=_count, metavar="N", required=True, help="of the target")
    layers.add_argument("--ids", metavar="I,J,K", help="as the drafter's config writes them (--ids=-1,14 for a minus)")
    layers.add_argument(
        "--key-at", choices=("nested", "top"), help="where its config holds them; else where they are read"
    )
    layers.add_argument("--runner", choices=("v1", "v2"), help="vLLM's model runner, where the answer depends on it")
    layers.add_argument("--json", action="store_true", default=SUPPRESS, help="machine-readable, on standard output")


def _add_supports(commands: "_SubParsersAction[ArgumentParser]") -> None:
    supports = commands.add_parser("supports", help="whether an installed engine supports EAGLE-3 for a target at all")
    supports.add_argument("--engine", required=True, help="vllm or sglang")
    supports.add_argument("--path", metavar="DIR", help="its site-packages; else the engine beside this Python")
    supports.add_argument("--architecture", metavar="NAME", help="as the target's config.json names it")
    supports.add_argument("--all", action="store_true", help="every architecture of the registry")
    supports.add_argument("--platform", choices=("cuda", "cpu", "rocm", "xpu"), default="cuda", help="(cuda)")
    supports.add_argument("--json", action="store_true", default=SUPPRESS, help="machine-readable, on standard output")


def _add_kernels(commands: "_SubParsersAction[ArgumentParser]") -> None:
    kernels = commands.add_parser("kernels", help="which compiled kernels Python imports, and for which GPUs they are")
    kernels.add_argument("--python", required=True, metavar="FILE", help="the Python that imports them")
    kernels.add_argument("--package", default="sgl_kernel", metavar="NAME", help="as it is imported (sgl_kernel)")
    kernels.add_argument("--arch", metavar="SM", help="the GPU that it is for, as sm_90; else the one that is here")
    kernels.add_argument("--built", metavar="FILE", help="the wheel or library that it should be")
    kernels.add_argument("--load", action="store_true", help="import it, to see which libraries are loaded")
    kernels.add_argument("--json", action="store_true", default=SUPPRESS, help="machine-readable, on standard output")


def _add_hosts(commands: "_SubParsersAction[ArgumentParser]", common: ArgumentParser) -> None:
    json = ArgumentParser(add_help=False)
    json.add_argument("--json", action="store_true", default=SUPPRESS, help="machine-readable, on standard output")
    hosts = commands.add_parser("hosts", help="the machines that runs may live on")
    of_hosts = hosts.add_subparsers(dest="hosts_command", metavar="COMMAND", required=True)
    add = of_hosts.add_parser("add", parents=[json], help="remember a host under a name")
    add.add_argument("name")
    add.add_argument("address", help="ssh://user@host:port, or a host of ~/.ssh/config")
    add.add_argument("--python", metavar="FILE", help="the Python there that has eagle3ops")
    add.add_argument("--root", dest="host_root", metavar="DIR", help="folder of runs and stage outputs there")
    of_hosts.add_parser("list", parents=[json], help="all remembered hosts")
    for name, text in (
        ("test", "connect, and say step by step what works"),
        ("remove", "forget a host; nothing on it is touched"),
        ("trust", "show the fingerprint of a host's key and trust it from now on"),
        ("install", "put eagle3ops into an environment of its own there"),
    ):
        command = of_hosts.add_parser(name, parents=[json], help=text)
        command.add_argument("name", help="a name from `hosts list`, or ssh://user@host:port")
        if name == "trust":
            command.add_argument(
                "--fingerprint", metavar="SHA256:...", help="trust this key and no other, without asking"
            )
        if name == "install":
            command.add_argument("--extra", action="append", default=[], metavar="NAME", help="train, gguf, sglang")
            command.add_argument("--yes", dest="install_yes", action="store_true", help="do not ask")


def _add_telemetry(commands: "_SubParsersAction[ArgumentParser]", common: ArgumentParser) -> None:
    telemetry = commands.add_parser("telemetry", help="GPUs, processes, disks and pressure: look, record, play back")
    of_telemetry = telemetry.add_subparsers(dest="telemetry_command", metavar="COMMAND", required=True)
    of_telemetry.add_parser("show", parents=[common], help="one look at this machine")
    record = of_telemetry.add_parser("record", parents=[common], help="write samples to a file, as JSON lines")
    record.add_argument("file", help="where to; .gz is compressed")
    record.add_argument("--hz", type=_rate, default=2.0, metavar="N", help="samples a second (2)")
    record.add_argument("--seconds", type=_seconds, metavar="S", help="how long; without it until interrupted")
    record.add_argument(
        "--pid", type=_count, action="append", default=[], metavar="PID", help="also this process and what it started"
    )
    play = of_telemetry.add_parser("play", parents=[common], help="show what a file holds")
    play.add_argument("file")


def _number(text: str, kind: type[N], wanted: str, fits: Callable[[N], bool]) -> N:
    """A number in its range. argparse repeats the message of this error, and of no other."""
    try:
        value = kind(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {wanted}") from None
    if not fits(value):
        raise ArgumentTypeError(f"{text!r} is not {wanted}")
    return value


def _rate(text: str) -> float:
    return _number(text, float, "a number from 0.01 to 100", lambda value: 0.01 <= value <= 100)


def _seconds(text: str) -> float:
    return _number(text, float, "a number of seconds above 0", lambda value: 0 < value < 1e8)


def _count(text: str) -> int:
    return _number(text, int, "a whole number, 0 or more", lambda value: value >= 0)


def _port(text: str) -> int:
    return _number(text, int, "a port (0 to 65535)", lambda value: 0 <= value < 65536)


def _days(text: str) -> float:
    return _number(text, float, "a number of days, 0 or more", lambda value: 0 <= value < 1e6)
