"""Is a drill's outcome what the readings say?"""

from typing import Any

import pytest

from eagle3ops.drills.catalogue import DRILLS, find
from eagle3ops.drills.score import GRACE_S, Score, skipped
from eagle3ops.errors import RequestError
from eagle3ops.watchdog.state import Reading, Standing

HEALTHY, ACCUSED, CONVICTED = Standing.HEALTHY, Standing.ACCUSED, Standing.CONVICTED


def reading(at: float, state: str, standing: Standing = HEALTHY) -> Reading:
    return Reading(state=state, standing=standing, since=at, at=at, phase="serving", title=f"{state} it is")


def scored(name: str, *readings: Reading, fault_at: float | None = 100.0, deadline_s: float = 60.0) -> Score:
    score = Score(find(name), deadline_s, lambda: fault_at)
    for one in readings:
        score.take(one)
    return score


def test_a_fault_that_is_named_in_time_is_right() -> None:
    score = scored(
        "stopped",
        reading(95, "serving"),
        reading(96, "serving"),
        reading(102, "stopped", ACCUSED),
        reading(110, "stopped", CONVICTED),
    )
    assert score.decided
    outcome = score.outcome(evidence="/x")
    assert outcome.right
    assert (outcome.said, outcome.seconds, outcome.false_alarms) == ("stopped", 10, 0)
    assert [(one.after_s, one.state) for one in outcome.story] == [(-5, "serving"), (2, "stopped"), (10, "stopped")]
    assert "rightly named stopped after 10 s, allowed 75 s" in outcome.words


@pytest.mark.parametrize(
    "last",
    [
        reading(110, "deadlock", CONVICTED),  # another name
        reading(100 + 60 + GRACE_S + 1, "stopped", CONVICTED),  # too late
        reading(90, "stopped", CONVICTED),  # before there was anything to see
        reading(110, "stopped", ACCUSED),  # not sure
    ],
)
def test_another_name_too_late_or_too_early_is_wrong(last: Reading) -> None:
    outcome = scored("stopped", reading(80, "serving"), last).outcome()
    assert not outcome.right
    assert "rightly" not in outcome.words


def test_it_is_given_up_after_the_deadline_and_the_grace() -> None:
    score = scored("stopped", reading(100, "serving"), reading(175, "serving"))
    assert not score.decided
    score.take(reading(175.1, "serving"))
    assert score.decided
    assert "was not named within" in score.outcome().words


def test_where_nothing_can_be_shown_a_suspicion_is_enough() -> None:
    assert scored("slow_disk", reading(130, "slow_load", ACCUSED)).outcome().right
    assert not scored("slow_disk", reading(130, "stale_lock", ACCUSED)).decided


def test_of_what_is_healthy_alarms_are_counted_once_each() -> None:
    states = [("idle", HEALTHY), ("deadlock", ACCUSED), ("deadlock", CONVICTED), ("deadlock", CONVICTED)]
    score = scored("idle", *(reading(k, state, standing) for k, (state, standing) in enumerate(states)), fault_at=0.0)
    outcome = score.outcome()
    assert (outcome.false_alarms, outcome.suspicions, outcome.right) == (1, 1, False)
    assert not score.decided
    assert scored("idle", reading(5, "idle"), reading(6, "unknown", Standing.UNKNOWN)).outcome().right


def test_without_a_reading_nothing_is_right() -> None:
    assert not scored("idle").outcome().right
    assert not scored("stopped").outcome().right
    assert "skipped: no GPU" in skipped(find("gpu_spin"), "no GPU").words


def test_every_drill_is_told_apart_and_explained() -> None:
    names = [drill.name for drill in DRILLS]
    assert len(set(names)) == len(names)
    for drill in DRILLS:
        assert drill.what
        assert drill.expect
        assert drill.phase
        assert find(drill.name.replace("_", "-")) is drill
    with pytest.raises(RequestError, match="no drill 'nothing'"):
        find("nothing")


def test_an_outcome_is_plain_data() -> None:
    data: dict[str, Any] = scored("stopped", reading(110, "stopped", CONVICTED)).outcome().as_json()
    assert data["type"] == "drill"
    assert data["story"][0]["standing"] == "convicted"
