"""Each bad line of the dead-letter example ends with its stage and in its minute; the good ones are priced."""

from apache_beam.testing.util import assert_that, equal_to


def test_good_lines_are_priced_and_bad_ones_are_dead_letters_in_their_minute(example, new_pipeline, tmp_path):
    dead_letters = example("dead_letters")

    def check(found):
        by_stage = {letter.stage: letter for letter in found}
        assert len(found) == len(by_stage) == 3
        assert by_stage["parsing"].minute == by_stage["classification"].minute == 0
        assert by_stage["parsing"].element == "a smudge, 3.0, 1.4, 0.2"
        assert "nan" in by_stage["classification"].element
        assert "NaN" in by_stage["classification"].error
        assert by_stage["pricing"].minute == 1
        assert by_stage["pricing"].error == "KeyError('virginica')"

    with new_pipeline() as pipeline:
        prices, letters = dead_letters.build(pipeline, dead_letters.train(tmp_path), dead_letters.LINES)
        assert_that(prices, equal_to([(0, 2.50), (0, 2.50), (1, 3.20), (1, 3.20)]), "prices")
        assert_that(letters, check, "letters")


def test_example_prints_prices_and_dead_letters(example, capsys):
    example("dead_letters").main([])

    out = capsys.readouterr().out
    assert out.count("minute 0: 2.50\n") == out.count("minute 1: 3.20\n") == 2
    assert out.count(" failed: ") == 3
