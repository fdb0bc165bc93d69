"""Does every file of the jobs' room take part in the key of the job that it belongs to?"""

from pathlib import Path

import pytest

from eagle3ops import jobs
from eagle3ops.runs.job import Job

ROOM = Path(jobs.__file__).parent
FILES = sorted(path.relative_to(ROOM) for path in ROOM.rglob("*.py") if path != ROOM / "__init__.py")


def named(file: Path) -> str:
    """A file of the room as a dotted name; a folder's `__init__.py` as the folder."""
    parts = file.with_suffix("").parts
    return ".".join(("eagle3ops", "jobs", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def covered(name: str, job: type[Job]) -> bool:
    return any(f"{name}.".startswith(f"{code}.") for code in job.code)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_belongs_to_a_job_and_is_part_of_its_key(file: Path) -> None:
    owner = file.parts[0].removesuffix(".py")
    assert owner in jobs.names(), "what is no job and belongs to none has its place in another room"
    assert covered(named(file), jobs.job(owner))


@pytest.mark.parametrize("name", jobs.names())
def test_a_job_stands_where_its_name_says(name: str) -> None:
    assert jobs.job(name).name == name
    assert jobs.job(name).__module__ in (f"eagle3ops.jobs.{name}", f"eagle3ops.jobs.{name}.job")


@pytest.mark.parametrize("name", ["bench", "compare", "sweep"])
def test_those_that_line_up_servers_have_the_lineup_in_their_key(name: str) -> None:
    assert covered("eagle3ops.bench.lineup", jobs.job(name))


def test_training_by_turns_has_the_extraction_in_its_key() -> None:
    assert set(jobs.job("extract").code) <= set(jobs.job("train").code)
