"""Was it overcome? What was done again, refused to one caller, or followed by work that went on is no cause."""

from eagle3ops.forensics.records import Reader

GOES_ON = 3
"""Lines of progress after which a trouble is taken to be over."""
NOWHERE = (-1, -1)


def settle(log: Reader) -> None:
    """Takes weight from what was overcome: the work went on after it, or had been ended on purpose before it."""
    log.finish()
    course = log.course
    findings = list(log.findings)
    stop = course.stopped.place if course.stopped is not None else None
    troubles = [
        f for f in findings if f.kind.role == "consequence" and not f.mild and (stop is None or f.line.place < stop)
    ]
    last = troubles[-1] if troubles else None
    ready = course.ready.place if course.ready is not None else NOWHERE
    finished = course.finished.place if course.finished is not None else NOWHERE
    end = course.fatal.place if course.fatal is not None and (stop is None or course.fatal.place < stop) else NOWHERE
    for finding in findings:
        place = finding.line.place
        if stop is not None and place > stop:
            finding.mild, finding.why = True, "said while the process was being ended on purpose"
            finding.weight -= 40
            continue
        if finding.kind.role == "consequence":
            continue
        since = last if last is not None and last.line.place > place else finding
        went_on = course.progress - since.progress >= GOES_ON or ready > since.line.place
        if place < end:
            # What ended cannot go on: that it was overcome shows only what was started anew, no neighbour in the log.
            went_on = course.anew >= GOES_ON or ready > since.line.place
        ended = last is None or last.line.place < place
        if went_on or (ended and finished > place):
            finding.mild = True
            finding.why = "the work went on after it" + (" and came to its end" if finished > place else "")
            finding.weight -= 40
