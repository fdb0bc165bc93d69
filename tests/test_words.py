"""Is what stands in a message true for the person who reads it?"""

from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.words import elsewhere, outcome_of, outcome_word, plain


def test_remedies_of_a_host_name_commands_for_that_host() -> None:
    assert elsewhere("free some space (eagle3ops runs gc --yes), then resume", "big") == (
        "free some space (eagle3ops runs gc --host big --yes), then resume"
    )
    assert elsewhere("eagle3ops runs list shows them", "a b") == "eagle3ops runs list --host 'a b' shows them"
    assert elsewhere("eagle3ops hosts install big", "big") == "eagle3ops hosts install big"


@given(st.text(), st.text(alphabet="abc-_", min_size=1))
def test_doing_it_twice_changes_nothing(text: str, host: str) -> None:
    once = elsewhere(text + " eagle3ops runs gc", host)
    assert elsewhere(once, host) == once


@given(st.text())
def test_plain_text_steers_no_terminal(text: str) -> None:
    assert all(character.isprintable() for character in plain(text))


def test_a_verdict_of_any_age_is_read() -> None:
    told: dict[str, list[dict[str, object]]] = {
        "PASS": [{"passed": True}, {"passed": True, "verdict": "PASS"}],
        "FAIL": [{"passed": False}, {"passed": False, "verdict": "FAIL"}, {}, {"passed": "yes"}],
        "UNDECIDED": [{"passed": False, "verdict": "UNDECIDED"}, {"passed": True, "verdict": "UNDECIDED"}],
    }
    for word, records in told.items():
        for record in records:
            assert outcome_word(outcome_of(record)) == word, record
