"""How does a report show one side against the other: served and predicted, trained and wired, with and without?"""

from typing import TYPE_CHECKING, Any

from eagle3ops.words import outcome_of, outcome_word

if TYPE_CHECKING:
    from eagle3ops.bench.report_data import Table


def alarm_tables(record: dict[str, Any]) -> "tuple[Table, ...]":
    """Where served and predicted part, what was found out about it, and whether the answers are text."""
    from eagle3ops.bench.report_data import Table

    tables = []
    rows: tuple[tuple[str, ...], ...]
    if alarm := record.get("alarm"):
        rows = tuple(
            (
                f"{at['position']}{' (here it starts)' if alarm['alarm'] and at['position'] == alarm['start'] else ''}",
                f"{100 * (at['served'] - at['predicted']):+.1f} points",
                f"{100 * at['low']:+.1f} to {100 * at['high']:+.1f}",
                f"{at['tokens']:+.3f}",
            )
            for at in alarm["positions"]
        )
        columns = ("draft position", "served less predicted", "95 % interval", "tokens a step")
        title = "ALARM: not what was predicted" if alarm["alarm"] else "Served less predicted"
        tables.append(Table(title, columns, rows, note=alarm["words"]))
    if suspects := record.get("suspects"):
        rows = tuple((one["name"], one["state"], one["why"], one["look"]) for one in suspects)
        tables.append(Table("What it can be", ("suspect", "state", "why", "what to do"), rows))
    if diversity := record.get("diversity"):
        held = (("served", diversity["served"]), ("the data's answers", diversity["data"]))
        rows = tuple(
            (name, *(f"{share:.1%}" for share in texts["distinct"]), f"{texts['looping']:.1%}")
            for name, texts in held
            if texts
        )
        heads = ("answers", "distinct tokens", "pairs", "triples", "4-grams", "looping")
        title = "Text served" if diversity["passed"] else "ALARM: monotonous text"
        tables.append(Table(title, heads, rows, note=diversity["words"]))
    return tuple(tables)


def wiring_tables(verdict: dict[str, Any]) -> "tuple[Table, ...]":
    """For the stored features and for the engine what each segment should hold and what it holds; then other checks."""
    from eagle3ops.bench.report_data import Table

    columns = (
        "segment",
        "trained on boundary",
        "holds",
        "relative error",
        "next best",
        "times farther",
        "cosine",
        "verdict",
    )
    tables = []
    for side in verdict["sides"]:
        rows = tuple(
            (
                str(segment["segment"]),
                str(segment["trained"]),
                str(segment["served"]),
                f"{segment['error']:.2e}",
                str(segment["runner_up"]),
                f"{segment['margin']:.0f}",
                f"{segment['cosine']:.4f}",
                outcome_word(outcome_of(segment)),
            )
            for segment in side["segments"]
        )
        tables.append(Table(side["side"], columns, rows, note=side["reason"]))
    if checks := verdict.get("checks"):
        told = tuple(
            (check["name"].replace("_", " "), " and ".join(check["between"]), check["verdict"], check["reason"])
            for check in checks
        )
        tables.append(Table("Beside the layers", ("check", "between", "verdict", "reason"), told))
    return tuple(tables)


def equality_tables(bench: dict[str, Any]) -> "tuple[Table, ...]":
    """Outputs with and without the drafter, in float32 and in the served dtype."""
    from eagle3ops.bench.report_data import Table

    tables = []
    if same := bench.get("equality"):
        row = (str(same["prompts"]), str(same["tokens"]), str(len(same["differ"])), "PASS" if same["equal"] else "FAIL")
        tables.append(Table(f"Greedy output in {same['dtype']}", ("prompts", "tokens", "differ", "verdict"), (row,)))
    if near := bench.get("divergence"):
        rows = tuple(
            (str(item["prompt"]), str(item["position"]), f"{item['token_a']} / {item['token_b']}", f"{item['gap']:.4f}")
            for item in near["divergences"]
        )
        note = (
            f"{near['prompts']} prompts compared. Rounding moves the gap between the two likeliest tokens by up to "
            f"{near['noise']:.3f}; a divergence within {near['bound']:.3f} is a near-tie of the target itself."
        )
        columns = ("prompt", "first different token", "tokens", "logit gap in float32")
        tables.append(Table("First divergences in the served dtype", columns, rows, note=note))
    return tuple(tables)
