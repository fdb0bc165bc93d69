"""A form for pipeline files: fields from any schema, and what is typed ends up in the text and nowhere else."""

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.hosts.agent import ops_runs, ops_spec
from eagle3ops.runs.job import load_registry
from eagle3ops.screens.launch.draft import Draft, Drafts, from_json
from eagle3ops.screens.launch.fields import Field, Section, sections
from eagle3ops.screens.launch.form import Form, Origin, Problem, Row, as_typed, job_section, read_typed, showable
from eagle3ops.screens.launch.host import problem_of, problems_of, read_file, save_file
from eagle3ops.screens.launch.lines import about_lines, form_lines, form_title, text_problems
from eagle3ops.screens.launch.plan import GpuRoom, plan_lines
from eagle3ops.screens.launch.yaml_text import same
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS
from eagle3ops.spec.bundled import bundled
from eagle3ops.spec.load import parse_pipeline
from eagle3ops.spec.yamltree import read_tree

HERE = ops_runs.here("/nowhere")
SCHEMA = ops_spec.schema(HERE)
SECTIONS = [job_section(SCHEMA["jobs"]), *sections(SCHEMA["schema"])]
TINY = bundled()["tiny"].read_text(encoding="utf-8")
FIELDS = {field.path: field for section in SECTIONS for field in section.fields}
LR = FIELDS["stages", "train", "lr"]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def form(text: str = TINY) -> Form:
    return Form(SECTIONS, Origin("bundled", "tiny", "tiny.yaml", text), text)


def check(made: Form) -> list[Problem]:
    return problems_of(ops_spec.check(HERE, spec_text=made.text, source="text"))


def test_every_setting_has_a_field_with_words_and_default() -> None:
    assert [section.name for section in SECTIONS][:4] == ["what to run", "pipeline", "target", "engine"]
    assert [section.name for section in SECTIONS if section.stage] == SCHEMA["jobs"][1:]
    assert LR.default == 0.002
    assert LR.words == "Peak rate of AdamW."
    assert LR.takes == "a number above 0"
    assert FIELDS["stages", "serve", "speculation", "steps"].takes == "a whole number from 1 to 16"
    assert FIELDS["engine", "name"].choices == ("reference", "sglang", "vllm")
    assert FIELDS["target", "model"].required
    assert FIELDS["stages", "extract", "quota"].takes == "a whole number from 1 or text such as 200 GiB, or nothing"
    assert ("schema",) not in FIELDS


def test_every_default_is_what_the_loader_fills_in() -> None:
    pipeline = parse_pipeline(TINY, "tiny", load_registry().specs()).model_dump(mode="json", by_alias=True)
    for path, field in FIELDS.items():
        _, stands = form().value(field)
        if field.has_default and not stands and path != ("--job",):
            at: Any = pipeline
            for key in path:
                at = at[key]
            assert at == field.default, path


MUTABLE = st.sampled_from(["type", "properties", "enum", "anyOf", "$ref", "default", "items", "description", "minimum"])


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from(["properties", "$defs", "required"]), JSON)
    | JSON
    | st.dictionaries(st.sampled_from(["a", "stages"]), st.dictionaries(MUTABLE, JSON)).map(lambda p: {"properties": p})
)
def test_a_garbled_schema_makes_some_form(schema: Any) -> None:
    found = sections(schema)
    made = Form(found, Origin("none", "", "x"), "a: 1\n")
    rows = made.rows(set())
    for line in form_lines(made, rows, set(), 60, BLOCKS):
        assert all(text.isprintable() for text, _ in line)
    for row in rows[:20]:
        about_lines(made, row, 60, ASCII)


def test_a_schema_that_refers_to_itself_ends() -> None:
    part = {"properties": {"a": {"$ref": "#/$defs/P"}, "b": {"$ref": "#/$defs/P"}}}
    assert sections({"$defs": {"P": part, "L": {"$ref": "#/$defs/L"}}, **part, "required": ["a"]})
    assert sections({"$defs": {"L": {"$ref": "#/$defs/L"}}, "properties": {"x": {"$ref": "#/$defs/L"}}})


def test_what_is_typed_is_in_the_text_and_explained_by_the_loader() -> None:
    made = form()
    made.type(LR, "abc")
    made.type(FIELDS["stages", "train", "epochs"], "1.5")
    made.type(FIELDS["stages", "extract", "quota"], "200 GB")
    made.type(FIELDS["stages", "generate", "system"], "on")
    made.put(FIELDS["engine", "name"], "vllm")
    assert made.data["stages"]["train"]["lr"] == "abc"
    assert made.data["stages"]["generate"]["system"] == "on"
    assert made.text.startswith(TINY[:60])
    made.problems = check(made)
    assert {problem.path for problem in made.problems} == {("stages", "train", "lr"), ("stages", "train", "epochs")}
    train = next(section for section in SECTIONS if section.name == "train")
    assert made.problems_at(Row(train, LR))[0].what == "stages.train.lr: expected a number, got 'abc'"
    assert not made.problems_at(Row(train))
    made.type(LR, "2e-4")
    assert [problem.path[-1] for problem in made.problems] == ["epochs"]
    assert len(made.changes()) == 5
    assert "5 changed, 1 wrong" in form_title(made)
    made.reset(("stages", "train", "epochs"))
    assert made.data["stages"]["train"]["epochs"] == 6
    made.use_default(("stages", "train", "epochs"))
    assert made.shown(FIELDS["stages", "train", "epochs"]) == "8"
    made.reset_all()
    assert made.untouched
    assert made.text == TINY


def test_unknown_keys_and_wrong_maps_are_told_where_they_stand() -> None:
    text = TINY + "  serve: {speculation: {steps: 5}}\n  trian: {}\nhots: x\n"
    made = form(text)
    made.problems = check(made)
    rows = made.rows(set())
    by_label = {row.field.label: row for row in rows if row.field is not None}
    assert by_label["hots"].unknown
    assert "did you mean 'train'?" in made.problems_at(by_label["stages.trian"])[0].remedy
    assert "did you mean 'host'?" in made.problems_at(by_label["hots"])[0].remedy
    # A problem of a map shows at each of its fields once the keys are known.
    made.use_default(("hots",))
    made.use_default(("stages", "trian"))
    made.problems = check(made)
    assert "a chain (topk 1) of 5 steps" in made.problems_at(by_label["speculation.draft_tokens"])[0].what
    assert [row.path for row in made.rows(set(), "wrong")][1:] == [
        ("stages", "serve", "speculation", key) for key in ("steps", "topk", "draft_tokens")
    ]


def test_a_text_that_is_no_yaml_can_be_mended_only_as_text() -> None:
    made = form()
    made.write("a: [1, 2\n")
    assert not made.editable
    made.type(LR, "1")
    assert made.text == "a: [1, 2\n"
    assert "no YAML" in form_title(made)
    for lines in (about_lines(made, None, 40, BLOCKS), text_problems(made, 40, BLOCKS)):
        assert any("✗" in text for line in lines for text, _ in line)
    made.write("- 1\n")
    assert "map" in made.broken
    made.write("")
    assert made.editable


def test_what_would_steer_a_terminal_is_left_out_and_what_is_long_is_cut() -> None:
    evil = 'name: "\\e[31m"\ntarget: {model: "a\x1b]52;c;aGk=\x07\u202eb", revision: ' + "A" * 100_000 + "}\r\n"
    made = form(evil)
    assert made.untouched
    assert not made.changes()
    assert made.shown(FIELDS["target", "model"]) == "a]52;c;aGk=b"
    assert made.shown(FIELDS["name",]) == '"\\x1b[31m"'
    assert len(made.shown(FIELDS["target", "revision"])) < 5000
    made.type(FIELDS["name",], made.shown(FIELDS["name",]))
    assert made.data["name"] == "\x1b[31m"


def test_the_command_line_starts_the_same() -> None:
    made = form()
    made.type(LR, "2e-4")
    made.type(FIELDS["target", "model"], "/a b/c")
    made.type(FIELDS["stages", "extract", "aux_layers"], "{convention: boundary, ids: [2, 3, 4]}")
    made.use_default(("stages", "train", "epochs"))
    made.put(FIELDS["--job",], "train")
    command, why = made.command("gpu 1", "/r oot")
    assert not why
    words = shlex.split(command)
    assert words[:5] == ["eagle3ops", "--job", "train", "--spec", "tiny"]
    assert words[-4:] == ["--root", "/r oot", "--host", "gpu 1"]
    sets = [word for before, word in itertools.pairwise(words) if before == "--set"]
    specs = load_registry().specs()
    assert parse_pipeline(TINY, "t", specs, sets) == parse_pipeline(made.text, "t", specs)


def test_why_there_is_no_command() -> None:
    run = Form(SECTIONS, Origin("run", "/r/spec.yaml", "that of r", TINY), TINY)
    assert run.command("local", None)[0] == "eagle3ops --job pipeline --spec /r/spec.yaml"
    assert "is on gpu" in run.command("gpu", None)[1]
    assert Form(SECTIONS, Origin("none", "", ""), TINY).command("local", None)[0] == ""
    made = form()
    made.use_default(("target", "model"))
    assert "taken out" in made.command("local", None)[1]


@settings(max_examples=40)
@given(st.sampled_from(list(FIELDS.values())), JSON | st.text(max_size=20))
def test_a_value_is_typed_as_it_is_shown(field: Field, value: Any) -> None:
    if isinstance(value, str):
        value = value.replace("\ufeff", "")
    shown = as_typed(field, value)
    if field.kind in ("text", "choice") and not isinstance(value, str):
        return
    back = read_typed(field, shown)
    # Nothing and an empty text look the same where nothing is possible.
    assert same(back, value) or (field.nullable and not shown and not value)
    assert shown.isprintable() or not isinstance(value, str)


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from(list(FIELDS.values())), st.text(max_size=12)), max_size=4), st.integers(8, 120)
)
def test_whatever_is_typed_is_kept_and_drawn(typed: list[tuple[Field, str]], width: int) -> None:
    made = form()
    for field, text in typed:
        if field.path != ("--job",):
            made.type(field, showable(text))
    assert same(read_tree(made.text, "t").data, made.data)
    rows = made.rows(set())
    for line in form_lines(made, rows, set(), width, BLOCKS):
        text = "".join(piece for piece, _ in line)
        assert text.isprintable()
        assert cell_len(text) <= max(width, 44)


def test_errors_lead_to_fields() -> None:
    told = problem_of(RequestError("stages.generate.prompts: /x: no such file", remedy="give one"))
    assert told.path == ("stages", "generate", "prompts")
    assert problem_of(RequestError("text:3:10: stages.bench.settings[1].steps: x")).path == (
        *("stages", "bench", "settings"),
        1,
        "steps",
    )
    assert problem_of(Eagle3opsError("disk: full")).path == ()
    assert problems_of({"problems": [1, {"path": [None, "a"], "what": "\x1b[31m"}, {}]})[0].path == ("a",)


@settings(max_examples=60)
@given(
    JSON
    | st.fixed_dictionaries(
        {
            "stages": st.lists(
                JSON
                | st.fixed_dictionaries(
                    {
                        "stage": JSON,
                        "done": JSON,
                        "forecast": JSON
                        | st.dictionaries(
                            st.sampled_from(
                                ["tokens", "disk_bytes", "memory_bytes", "gpu_memory_bytes", "seconds", "notes"]
                            ),
                            JSON,
                        ),
                        "reason": JSON,
                    }
                ),
                max_size=4,
            ),
            "free_bytes": JSON,
            "available_memory_bytes": JSON,
            "refused": JSON,
            "remedy": JSON,
        }
    ),
    st.integers(20, 120),
)
def test_a_garbled_plan_is_drawn(plan: Any, width: int) -> None:
    lines = plan_lines(plan if isinstance(plan, dict) else {}, width, BLOCKS, GpuRoom(2, 1e9, 1e8))
    assert all(text.isprintable() for line in lines for text, _ in line)


def test_a_plan_says_what_does_not_fit() -> None:
    plan = {
        "stages": [
            {"stage": "fetch", "done": True, "forecast": {}},
            {"stage": "extract", "done": False, "reason": "a shard is damaged", "forecast": {
                "tokens": 51_456, "disk_bytes": 3 << 30, "gpu_memory_bytes": 90 << 30, "seconds": 61.0,
                "notes": ["a note"],
            }},
            {"stage": "train", "done": False, "forecast": {}},
        ],
        "free_bytes": 1 << 30,
        "available_memory_bytes": 8 << 30,
        "refused": "disk: 3.0 GiB are forecast",
        "remedy": "free some space",
    }  # fmt: skip
    lines = plan_lines(plan, 76, BLOCKS, GpuRoom(8, 80 << 30, 10 << 30))
    text = "\n".join("".join(piece for piece, _ in line) for line in lines)
    for words in (
        "✗ REFUSED  disk", "→ free some space", "✓ reused", "● runs", "51 k", "1 min 01 s", "a shard is damaged",
        "3.0 GiB of 1.0 GiB free, 300%", "90.0 GiB of 80.0 GiB on the largest", "not forecast; 8.0 GiB available",
        "without train", "extract: a note",
    ):  # fmt: skip
        assert words in text, text
    assert ("3.0 GiB of 1.0 GiB free, 300%", "bad") in [piece for line in lines for piece in line]


def test_drafts_outlive_their_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Drafts("local", "/r", tmp_path), Drafts("local", "/r", tmp_path)
    origin = Origin("bundled", "tiny", "tiny.yaml", TINY)
    one.save(Draft(TINY, "pipeline", origin))
    assert not list(tmp_path.iterdir())
    one.save(Draft(TINY + "seed: 1\n", "train", origin, 5.0, "key"))
    # Its console lives: this process.
    assert other.take_up() is None
    monkeypatch.setattr("eagle3ops.screens.launch.draft.is_alive", lambda data: False)
    assert Drafts("gpu", "/r", tmp_path).take_up() is None
    found = other.take_up()
    assert found is not None
    assert (found.text, found.job, found.origin, found.key) == (TINY + "seed: 1\n", "train", origin, "key")
    other.forget()
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    one.save(Draft(TINY + "seed: 2\n", "pipeline", origin), leave=True)
    left = other.take_up()
    assert left is not None
    assert left.text == TINY + "seed: 2\n"


def test_what_was_put_away_is_kept_for_a_while(tmp_path: Path) -> None:
    drafts = Drafts("local", "/r", tmp_path)
    for number in range(15):
        drafts.put_away(Draft(f"seed: {number}\n", "pipeline", Origin("none", "", "x"), float(number + 1)))
    assert [draft.text for draft in drafts.earlier()] == [f"seed: {number}\n" for number in range(14, 4, -1)]
    assert drafts.take_up() is None
    (tmp_path / "damaged-away-1.json").write_text("{")


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["text", "job", "origin", "saved", "key"]), JSON))
def test_a_garbled_draft_is_some_draft_or_none(data: dict[str, Any]) -> None:
    found = from_json(data)
    assert (found is not None) == isinstance(data.get("text"), str)


def test_files_are_read_and_written_with_care(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    assert save_file(str(path), "a: 1\n", replace=False) == str(path)
    assert save_file(str(path), "a: 2\n", replace=False) is None
    assert read_file(str(path)) == (str(path), "a: 1\n")
    assert save_file(str(path), "a: 2\n", replace=True) == str(path)
    assert [item.name for item in tmp_path.iterdir()] == ["a.yaml"]
    path.write_text("a: 1\nb: \u202e\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"a.yaml:2: holds the character U\+202E"):
        read_file(str(path))
    path.write_bytes(b"\xff")
    for wrong in (str(path), str(tmp_path), str(tmp_path / "no")):
        with pytest.raises(RequestError):
            read_file(wrong)
    with pytest.raises(RequestError, match="cannot be written"):
        save_file(str(tmp_path / "no" / "b.yaml"), "", replace=False)


def test_a_section_without_fields_has_a_head() -> None:
    made = Form([Section(("stages", "fetch"), "fetch", "Nothing.", ())], Origin("none", "", ""), "")
    assert [row.path for row in made.rows(set())] == [("stages", "fetch")]
