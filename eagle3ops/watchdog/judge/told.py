"""How is a reading told to a person: the signals that led to it, with units and windows, and one line?"""

from eagle3ops.watchdog.judge.states import STATES
from eagle3ops.watchdog.judge.view import Finding, View
from eagle3ops.watchdog.state import Signal, Standing
from eagle3ops.words import human_bytes, human_seconds


def signals_of(view: View) -> tuple[Signal, ...]:
    """What was seen, whatever it means."""
    found: list[Signal] = []
    rates = view.short
    if rates is not None:
        over = f"over {rates.seconds:.0f} s, {rates.processes} process{'es' if rates.processes != 1 else ''}"
        found.append(Signal("cpu", f"{rates.cpu:.1f} % of a core {over}", rates.cpu))
        if rates.wakeups is not None:
            found.append(
                Signal("wakeups", f"{rates.wakeups:.1f} wake-ups a second of main threads {over}", rates.wakeups)
            )
        if rates.read is not None:
            found.append(Signal("read", f"{human_bytes(rates.read)} a second read {over}", rates.read))
    gpus = view.window.gpus
    util = gpus.util(10.0)
    if util is not None:
        used = gpus.used()
        power = [value for gpu in used if (value := gpu.mean("power", 10.0)) is not None]
        which = ", ".join(str(gpu.index) for gpu in used[:16])
        found.append(Signal("gpu_util", f"{util:.0f} % mean over 10 s of GPU {which}", util))
        if power:
            found.append(Signal("gpu_power", f"{sum(power):.0f} W over 10 s, all of them together", sum(power)))
        held = sum(gpu.mean("used", 2.0) or 0.0 for gpu in used)
        found.append(Signal("gpu_memory", f"{human_bytes(held)} of their memory in use", held))
    if view.compiling:
        found.append(Signal("compilers", "compilers have run within 30 s"))
    spoke = view.reader.spoke_at
    if spoke is not None:
        silent = view.ago(spoke)
        found.append(Signal("log_silent", f"no line of a log for {human_seconds(silent)}", silent))
    deciding = view.asked.last.get(view.asked.deciding)
    if deciding is not None:
        age = human_seconds(max(0.0, view.now - deciding.at))
        found.append(Signal("probe", f"{deciding.name}, asked {age} ago: {deciding.words[:200]}", deciding.seconds))
    return tuple(found)


def title_of(name: str, finding: Finding, standing: Standing, seconds: float, phase: str) -> str:
    """One line: who, what, for how long."""
    kind = STATES[finding.state]
    if standing is Standing.UNKNOWN:
        why = finding.signals[0].words if finding.signals else ""
        return f"{name}: {kind.title}" + (f", {why}" if why else "")
    where = f" in {phase.replace('_', ' ')}" if phase and kind.kind != "healthy" else ""
    doubt = " perhaps" if standing is Standing.ACCUSED else ""
    several = "es" if len(finding.suspects) > 1 else ""
    pids = f", see process{several} {', '.join(map(str, finding.suspects[:4]))}" if finding.suspects else ""
    lasted = f", for {human_seconds(seconds)}" if seconds >= 1.0 else ""
    return f"{name}:{doubt} {kind.title}{where}{lasted}{pids}"
