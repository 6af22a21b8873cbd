"""The most frequent messages are known, however many others there are."""

from headrace.jobs.messages import Messages


def test_what_comes_often_is_found_among_thousands_that_do_not():
    messages = Messages()
    for n in range(20_000):
        messages.add("inference ValueError", f"row {n} is bad")
        if n % 4 == 0:
            messages.add("inference KeyError", "no\nsuch key")
    assert next(iter(messages.most_frequent(3).items())) == ("inference KeyError: no such key", 5000)
    assert len(messages.most_frequent()) <= 100


def test_messages_are_short():
    messages = Messages()
    messages.add("reading E", "x" * 100_000)
    messages.add("reading E", "")
    assert sorted(map(len, messages.most_frequent())) == [9, 9 + 2 + 300]
