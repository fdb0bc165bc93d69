"""What stands beside the form: the plan, or why there is none, and whether it is of what stands in the form."""

import time

from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.launch.desk import Desk
from eagle3ops.screens.launch.lines import problem_lines
from eagle3ops.screens.launch.marks import marks_of
from eagle3ops.screens.launch.plan import GpuRoom, due_stages, plan_lines, wrapped
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.words import human_bytes, human_seconds, plain


def plan_words(desk: Desk, link: str) -> tuple[str, bool]:
    """The title of the plan, and whether what is below must look stale.

    Args:
        desk: what is filled in, and what the host said of it.
        link: how the line to the host stands, `connected` when it does.
    """
    if desk.placing:
        return f"STARTING: the answer of {desk.host} is awaited" + ("" if link == "connected" else f" ({link})"), True
    if desk.form is None or desk.verdict is None:
        return "Plan" if link == "connected" else f"NO PLAN: {desk.host} is {link}", False
    read = time.strftime("%H:%M:%S", time.localtime(desk.verdict.at))
    before = "" if desk.fresh is not None else ", before the last change"
    if link != "connected":
        return f"STALE: {desk.host} is {link}; of {read}{before}", True
    if desk.trouble is not None:
        return f"STALE: {desk.host} cannot be asked; of {read}{before}", True
    if desk.fresh is None:
        return f"BEING COMPUTED; below: of {read}{before}", True
    if desk.fresh.problems:
        return f"{len(desk.fresh.problems)} to mend   read {read}", False
    return f"Plan of {'the pipeline' if desk.form.job == 'pipeline' else desk.form.job}   read {read}", False


def verdict_lines(desk: Desk, width: int, glyphs: Glyphs, gpus: GpuRoom) -> list[Line]:
    """What the host said last."""
    verdict, trouble = desk.verdict, desk.trouble
    if trouble is not None and desk.fresh is None:
        lines = wrapped(plain(trouble.what), width, "bad")
        return [*lines, *(wrapped(plain(trouble.remedy), width, "plain") if trouble.remedy else [])]
    if verdict is None:
        return [(("Nothing planned yet.", "dim"),)]
    if verdict.problems:
        lines = wrapped("It can be planned once this is mended (n goes from one to the next):", width, "plain")
        for problem in verdict.problems:
            lines.append(())
            if problem.line is not None:
                lines.append(((f"line {problem.line}", "dim"),))
            lines += problem_lines(problem, width, glyphs)
        if verdict.left_out:
            lines.append(((f"and {verdict.left_out} more", "warn"),))
        return lines
    if verdict.trouble is not None:
        return [*wrapped("It cannot be planned:", width, "plain"), (), *problem_lines(verdict.trouble, width, glyphs)]
    return plan_lines(verdict.plan or {}, width, glyphs, gpus)


def short_words(desk: Desk, link: str, glyphs: Glyphs) -> str:
    """The plan in a few words, for where it is hidden."""
    marks, verdict = marks_of(glyphs), desk.fresh
    if desk.placing:
        return "STARTING"
    if link != "connected" or desk.trouble is not None:
        return "plan: STALE"
    if verdict is None:
        return "plan: being computed"
    if verdict.problems or verdict.trouble is not None or verdict.plan is None:
        return f"{marks.bad} no plan"
    if verdict.refused:
        return f"{marks.bad} REFUSED"
    due = len(due_stages(verdict.plan))
    return f"plan: {due} run" if due else "plan: all done already"


def summary(desk: Desk, where: str) -> str:
    """What a start comes to, in sentences."""
    verdict = desk.fresh
    if verdict is None or verdict.plan is None:
        return ""
    plan = verdict.plan
    due = [plain(stage.get("stage")) for stage in due_stages(plan)]
    every = plan.get("stages")
    reused = len(every) - len(due) if isinstance(every, list) else 0
    told = [f"Runs {', '.join(due)}." if due else "Every stage is done already; it ends at once."]
    if reused:
        told.append(f"{reused} done already, not run again.")
    forecasts = [mapping(stage.get("forecast")) for stage in due_stages(plan)]
    disk = sum(number(one.get("disk_bytes")) or 0 for one in forecasts)
    memory = max((number(one.get("memory_bytes")) or 0 for one in forecasts), default=0)
    seconds = [value for one in forecasts if (value := number(one.get("seconds"))) is not None]
    if disk:
        free = number(plan.get("free_bytes"))
        told.append(f"Disk {human_bytes(disk)}" + (f" of {human_bytes(free)} free." if free is not None else "."))
    if memory:
        there = number(plan.get("available_memory_bytes"))
        told.append(f"Memory {human_bytes(memory)}" + (f" of {human_bytes(there)} available." if there else "."))
    if due:
        at_least = " at least" if len(seconds) < len(due) else ""
        told.append(f"Takes{at_least} about {human_seconds(sum(seconds))}." if seconds else "How long is not known.")
    return "\n".join([" ".join(told[: 1 + bool(reused)]), " ".join(told[1 + bool(reused) :]), f"On {where}."])
