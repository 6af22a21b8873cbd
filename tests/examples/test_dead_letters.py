"""Each bad line of the dead-letter example ends with its stage and in its minute; the good ones are priced."""


def test_good_lines_are_priced_and_bad_ones_are_dead_letters_in_their_minute(example, capsys):
    example("dead_letters").main([])

    out = capsys.readouterr().out
    assert out.count("minute 0: 2.50\n") == out.count("minute 1: 3.20\n") == 2
    assert out.count(" failed: ") == 3
    for letter in (
        "minute 0: parsing failed: ValueError(",
        "minute 0: classification failed: ValueError(",
        "minute 1: pricing failed: KeyError('virginica')",
    ):
        assert letter in out
