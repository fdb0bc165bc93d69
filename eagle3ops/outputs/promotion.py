"""Which drafter is a target to be served with, who decided that, and what was it before?

ROOT/promoted/<target fingerprint>.json    every decision about one target, the newest last; replaced atomically
ROOT/promoted/.<target fingerprint>.lock   held while a decision is made, so that two cannot be made at once

`current` is the number of the promotion that holds now, 0 where none does. Each promotion names the one that it
replaced; rolling back goes there.
"""

import fcntl
import getpass
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError, Refused, RequestError
from eagle3ops.outputs.benchfile import Setting, Speedup
from eagle3ops.outputs.case import Case, Current, judge
from eagle3ops.outputs.launch import launch_line
from eagle3ops.outputs.lineage import FINGERPRINT, Target
from eagle3ops.outputs.values import count, mapping, number, text
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import explain_os_error, read_json, write_json
from eagle3ops.runs.redact import redact
from eagle3ops.runs.store import DONE, damage

FOLDER = "promoted"
SCHEMA = 1
LOCK_WAIT_S = 5.0
NOTHING = "nothing: the target without a drafter"


@dataclass(frozen=True, slots=True)
class Promoted:
    """All decisions about one target."""

    target: Target
    current: int
    history: tuple[Mapping[str, Any], ...]
    """Decisions, oldest first: `number`, `ts`, `action`, `by`, ..."""

    @property
    def generation(self) -> int:
        """How many decisions there have been; whoever decides says on which state of affairs."""
        return len(self.history)

    def promotion(self, number: int) -> Mapping[str, Any] | None:
        """The promotion with that number."""
        return next((one for one in self.history if one["number"] == number and one["action"] == "promote"), None)

    @property
    def now(self) -> Mapping[str, Any] | None:
        """The promotion that holds."""
        return self.promotion(self.current)

    @property
    def before(self) -> Mapping[str, Any] | None:
        """The promotion that a rollback would lead to; None where it leads to no drafter."""
        return None if self.now is None else self.promotion(self.now["replaced"])

    def as_json(self, most: int = 50) -> dict[str, Any]:
        """For answers; of a long history the newest decisions."""
        return {
            "target": {"name": self.target.name, "fingerprint": self.target.fingerprint},
            "generation": self.generation,
            "current": self.now,
            "previous": self.before,
            "history": list(self.history[-most:]),
            "left_out": max(0, len(self.history) - most),
        }


def names(promotion: Mapping[str, Any] | None) -> str:
    """A promotion in few words: run and setting."""
    return NOTHING if promotion is None else f"{promotion['run']} at {promotion['setting']}"


def file_of(root: Path, fingerprint: str) -> Path:
    """Where the decisions about a target stand."""
    if not FINGERPRINT.fullmatch(fingerprint):
        raise RequestError(f"{fingerprint[:80]!a} is no fingerprint of a target")
    return root / FOLDER / f"{fingerprint}.json"


def read(root: Path, target: Target) -> Promoted:
    """The decisions about a target; none where nothing was ever promoted for it.

    Raises:
        Eagle3opsError: the file is damaged.
    """
    path = file_of(root, target.fingerprint)
    if not path.exists():
        return Promoted(target, 0, ())
    found = _parse(read_json(path))
    if found is None:
        raise Eagle3opsError(f"{path}: damaged: not a record of promotions", remedy="bring it back, or move it away")
    return found


def read_all(root: Path) -> tuple[list[Promoted], list[str]]:
    """The decisions about every target, and the files that are damaged."""
    found, damaged = [], []
    for path in sorted((root / FOLDER).glob("*.json")):
        one = _parse(read_json(path))
        if one is None or one.target.fingerprint != path.stem:
            damaged.append(str(path))
        else:
            found.append(one)
    return found, damaged


def find(root: Path, target: str | None) -> Promoted:
    """The decisions about the target with that name or beginning of its fingerprint; the only one when not named.

    Raises:
        RequestError: there is none, or more than one.
    """
    found, damaged = read_all(root)
    like = [
        one
        for one in found
        if target is None or one.target.name == target or (target and one.target.fingerprint.startswith(target))
    ]
    if len(like) == 1:
        return like[0]
    if like:
        names_of = ", ".join(f"{one.target.name} ({one.target.fingerprint[:12]})" for one in like[:5])
        raise RequestError(f"more than one target fits: {names_of}", remedy="name one by more of its fingerprint")
    told = f" named {target!r}" if target else ""
    remedy = f"damaged: {', '.join(damaged[:3])}" if damaged else "eagle3ops drafters show tells what is promoted"
    raise RequestError(f"nothing was promoted for a target{told} in {root / FOLDER}", remedy=remedy)


def _parse(data: Mapping[str, Any] | None) -> Promoted | None:
    """The record in a file's content; None when any of it makes no sense."""
    target, history = mapping(mapping(data).get("target")), mapping(data).get("history")
    name, fingerprint = text(target.get("name")), text(target.get("fingerprint"))
    current = count(mapping(data).get("current"))
    if mapping(data).get("schema") != SCHEMA or current is None or not isinstance(history, list):
        return None
    if not FINGERPRINT.fullmatch(fingerprint) or not all(_sound(n, entry) for n, entry in enumerate(history, 1)):
        return None
    found = Promoted(Target(name, fingerprint, text(target.get("path"), 4096)), current, tuple(history))
    return None if current and found.now is None else found


def _sound(at: int, entry: object) -> bool:
    if not isinstance(entry, Mapping) or entry.get("number") != at or number(entry.get("ts")) is None:
        return False
    if entry.get("action") == "rollback":
        return True
    replaced = count(entry.get("replaced"))
    told = all(isinstance(entry.get(key), str) for key in ("run", "setting", "drafter", "launch_line"))
    return entry.get("action") == "promote" and replaced is not None and replaced < at and told


@contextmanager
def deciding(root: Path, target: Target) -> Iterator[Promoted]:
    """Hold the decisions about a target alone; gives them as they are.

    Raises:
        Refused: somebody else is deciding.
    """
    path = file_of(root, target.fingerprint)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name(f".{path.stem}.lock"), "a+b") as lock:
            _take(lock.fileno(), target)
            yield read(root, target)
    except OSError as error:
        raise explain_os_error(error, path) or error from error


def _take(lock: int, target: Target) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Refused(f"somebody else is deciding about {target.name} right now", remedy="try again") from None
            time.sleep(0.05)
        else:
            return


def current_of(promoted: Promoted) -> Current | None:
    """What the gate has to know of the promotion that holds."""
    now = promoted.now
    if now is None:
        return None
    ratio = mapping(now.get("speedup"))
    value, low, high = (number(ratio.get(key)) for key in ("value", "low", "high"))
    known = value is not None and low is not None and high is not None
    speedup = Speedup(value, low, high, count(ratio.get("pairs"))) if known else None  # type: ignore[arg-type]
    return Current(text(now.get("setting")), text(now.get("dtype")), speedup, text(now.get("identity")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Who wants it, and on which state of affairs."""

    reason: str | None = None
    forced: bool = False
    """Although the gate refuses; needs a reason."""
    expected: int | None = None
    """`generation` as it was when the person decided; None: whatever it is."""
    token: str | None = None
    """The same one again leads to the same decision, and to no second one."""


def promote(root: Path, run: RunDirectory, case: Case, setting: Setting, wish: Wish) -> tuple[Promoted, bool]:
    """Make a run's drafter the one that its target is served with; says whether anything changed.

    Raises:
        Refused: the gate says no, or somebody else decided meanwhile.
        RequestError: it cannot be promoted at all, or is forced without a reason.
    """
    if case.target is None or case.drafter is None:
        gone = "target's record" if case.target is None else "drafter"
        raise RequestError(f"{run.run_id}: the {gone} is gone from the store", remedy="run the pipeline again")
    if wish.forced and not (wish.reason or "").strip():
        raise RequestError("a promotion that the gate refuses needs a reason", remedy="say why; it is recorded")
    _require_whole(case.drafter)
    with deciding(root, case.target) as promoted:
        if _decided(promoted, wish):
            return promoted, False
        now = promoted.now
        wanted = (run.run_id, setting.label, case.identity)
        if now is not None and (now["run"], now["setting"], now.get("identity")) == wanted:
            return promoted, False
        _require_unchanged(promoted, wish)
        judgement = judge(case, setting, current_of(promoted))
        if judgement.refusals and not wish.forced:
            raise Refused(
                f"{run.run_id} at {setting.label} is not promoted: {'; '.join(judgement.refusals)}",
                remedy=f"eagle3ops drafters promote {run.run_id} --force --reason TEXT does it all the same",
            )
        entry = _entry(promoted, "promote", wish) | {
            "run": run.run_id,
            "setting": setting.label,
            "replaced": promoted.current,
            "drafter": case.drafter.relative_to(root).as_posix(),
            "identity": case.identity,
            "dtype": case.dtype,
            "speedup": None if setting.speedup is None else asdict(setting.speedup),
            "accept_length": setting.accept_length,
            "verdicts": {verdict.name: verdict.passed for verdict in case.verdicts},
            "forced": wish.forced and bool(judgement.refusals),
            "refusals": list(judgement.refusals),
            "cautions": list(judgement.cautions),
            "launch_line": case.launch.get(setting.label) or launch_line(run, case, setting.label),
        }
        return _write(root, promoted, entry, promoted.generation + 1), True


def rollback(root: Path, target: Target, wish: Wish) -> tuple[Promoted, bool]:
    """Go back to what was promoted before; says whether anything changed.

    Raises:
        Refused: the drafter that was promoted before is gone or damaged, or somebody else decided meanwhile.
        RequestError: nothing is promoted.
    """
    with deciding(root, target) as promoted:
        if _decided(promoted, wish):
            return promoted, False
        _require_unchanged(promoted, wish)
        if promoted.now is None:
            raise RequestError(f"no drafter is promoted for {target.name}", remedy="there is nothing to go back from")
        before = promoted.before
        if before is not None:
            try:
                _require_whole(root / str(before["drafter"]))
            except RequestError as error:
                raise Refused(
                    f"{names(before)} cannot be gone back to: {error.what}",
                    remedy="promote another one, or remove promotions by hand",
                ) from error
        entry = _entry(promoted, "rollback", wish) | {
            "from": promoted.current,
            "to": 0 if before is None else before["number"],
        }
        return _write(root, promoted, entry, entry["to"]), True


def _entry(promoted: Promoted, action: str, wish: Wish) -> dict[str, Any]:
    return {
        "number": promoted.generation + 1,
        "ts": round(time.time(), 3),
        "action": action,
        "by": _who(),
        "reason": redact(wish.reason.strip()[:2000]) if wish.reason else None,
        "token": wish.token,
    }


def _who() -> str:
    name = "?"
    with suppress(KeyError, OSError):
        name = getpass.getuser()
    return f"{name}@{socket.gethostname()}"


def _write(root: Path, promoted: Promoted, entry: Mapping[str, Any], current: int) -> Promoted:
    fresh = Promoted(promoted.target, current, (*promoted.history, entry))
    write_json(
        file_of(root, promoted.target.fingerprint),
        {"schema": SCHEMA, "target": asdict(promoted.target), "current": current, "history": list(fresh.history)},
    )
    return fresh


def _decided(promoted: Promoted, wish: Wish) -> bool:
    return wish.token is not None and any(entry.get("token") == wish.token for entry in promoted.history)


def _require_unchanged(promoted: Promoted, wish: Wish) -> None:
    if wish.expected is not None and wish.expected != promoted.generation:
        last = promoted.history[-1] if promoted.history else {}
        raise Refused(
            f"{text(last.get('by')) or 'somebody'} decided about {promoted.target.name} meanwhile: "
            f"what is promoted now is {names(promoted.now)}",
            remedy="look again, and decide on that",
        )


def _require_whole(drafter: Path) -> None:
    """The drafter's folder is as the training left it.

    Raises:
        RequestError: something of it is missing or has changed.
    """
    done = read_json(drafter.parent / DONE)
    if done is None or not drafter.is_dir():
        raise RequestError(f"{drafter} is gone")
    if why := damage(drafter.parent, done | {"files": _drafter_files(done)}):
        raise RequestError(why, remedy="train it again")


def _drafter_files(done: Mapping[str, Any]) -> list[Any]:
    files = done.get("files")
    return (
        [one for one in files if str(mapping(one).get("path")).startswith("drafter/")]
        if isinstance(files, list)
        else []
    )
