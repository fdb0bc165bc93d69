"""In which states can processes be, and what is to be said about each? The tables of `assets/states.toml`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKind:
    """One state."""

    name: str
    kind: str
    """`healthy`, `hindered` (it works, but something holds it up), `fault`, or `unknown`."""
    title: str
    """A few words for people."""
    explanation: str
    remedies: tuple[str, ...] = ()
    """What can be done, for people."""
    accuse_s: float | None = None
    """So long must counters look like it before it accuses; None: it never does."""
    convict_s: float | None = None
    """So long must it stand to be a fact by itself; None: it takes a probe, a deadline or another's fact."""

    @property
    def healthy(self) -> bool:
        """Nothing is wrong with the work itself, though something may hold it up."""
        return self.kind in ("healthy", "hindered")


def _load() -> tuple[dict[str, StateKind], Mapping[str, Any]]:
    text = resources.files("eagle3ops.assets").joinpath("states.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    xids = tables.pop("xids")
    states = {
        name: StateKind(
            name=name,
            kind=kind,
            title=one["title"],
            explanation=one["explanation"],
            remedies=tuple(one.get("remedies", ())),
            accuse_s=float(one["accuse_s"]) if "accuse_s" in one else None,
            convict_s=float(one["convict_s"]) if "convict_s" in one else None,
        )
        for kind, named in tables.items()
        for name, one in named.items()
    }
    return states, xids


STATES, _XIDS = _load()
"""All states by name."""
XIDS_THAT_CONVICT: frozenset[int] = frozenset(_XIDS["convict"])
"""After these the work does not go on."""
XID_S: float = float(_XIDS["accuse_s"])
"""So long any other Xid accuses."""
FACTS: Mapping[str, str] = {
    "oom_kill": "host_oom",
    "xid": "xid",
    "file_lock": "stale_lock",
    "stale_lock": "stale_lock",
    "zombie": "half_dead",
    "gpu_lost": "gpu_lost",
    "collective_timeout": "spin",
    **{name: name for name, one in STATES.items() if one.kind == "fault"},
}
"""What others may find (`Watch.fact`) -> the state that it shows."""
