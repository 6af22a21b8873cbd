"""What the processes of a machine know about an endpoint together: who counts, for how long, and whose turn it is."""

from __future__ import annotations

import math

from headrace.failures.endpoint_board import MEMBERS, Board, Memory


def members(count, now=0.0):
    memory = Memory()
    return [Board(now, memory) for _ in range(count)]


def others(board, now):
    board.look(now)
    return board.others


def test_members_see_what_each_other_has():
    one, other = members(2)
    one.show(1.0, in_flight=3, waiting=4)
    (seen,) = others(other, 1.0)
    assert (seen.in_flight, seen.waiting) == (3, 4)


def test_member_that_is_silent_gives_back_what_it_held():
    one, other = members(2)
    other.show(1.0, in_flight=3, waiting=4)
    assert len(others(one, 2.9)) == 1
    assert others(one, 3.1) == []


def test_member_that_leaves_gives_its_row_to_the_next():
    one, other = members(2)
    other.show(1.0, in_flight=3, waiting=4)
    other.close()
    assert others(one, 1.1) == []
    third = Board(1.2, one._memory)
    assert (third.own.in_flight, one.state.members) == (0, 2)


def test_member_that_has_left_keeps_what_was_found_out_for_itself():
    one, other = members(2)
    one.state.quota = 7.0
    other.close()
    other.state.quota = 8.0
    other.show(1.0, in_flight=1, waiting=0)
    assert (one.state.quota, others(one, 1.0)) == (7.0, [])


def test_rows_of_members_that_were_killed_are_used_again():
    boards = members(MEMBERS)
    boards[0].show(1.0, in_flight=0, waiting=0)
    late = Board(5.0, boards[0]._memory)
    assert late.own.owner
    assert sum(board.own.owner == board._token for board in boards) == MEMBERS - 1


def test_member_whose_row_another_has_taken_finds_another_row():
    boards = members(MEMBERS)
    late = Board(5.0, boards[0]._memory)
    (victim,) = (board for board in boards if board.own.owner != board._token)
    for board in boards:
        board.show(6.0, in_flight=1, waiting=0)
    late.show(6.0, in_flight=2, waiting=0)
    assert victim.own.owner == victim._token
    assert late.own.in_flight == 2


def test_what_was_found_out_is_forgotten_when_nobody_was_there_for_a_minute():
    (one,) = members(1)
    one.state.quota = 7.0
    one.show(1.0, in_flight=0, waiting=0)
    assert Board(50.0, one._memory).state.quota == 7.0
    assert Board(111.0, one._memory).state.quota == math.inf
