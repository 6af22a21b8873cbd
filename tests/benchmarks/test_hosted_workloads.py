"""The workloads about model hosts measure what they claim, on real hosts and against Beam's own means."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.large


@pytest.fixture
def recovery(benchmark_module):
    return benchmark_module("workloads.recovery")


def test_hosts_are_killed_as_often_as_asked(recovery, benchmark_module, tmp_path):
    handler = benchmark_module("elsewhere.mortal").MortalHandler

    started, moments = recovery.run(handler, tmp_path, 3)
    recoveries = recovery.find_recoveries(moments)

    assert started < moments[0].ns
    assert len(recoveries) == 3
    assert all(one.total > one.loading > 0 for one in recoveries)


def test_a_recovery_is_measured_from_death_to_the_next_attempt(recovery):
    def moments(*words):
        return [recovery.Moment(what, batch, int(ms * 1e6)) for what, batch, ms in words]

    death = moments(("begun", 0, 1), ("killed", 0, 2), ("loading", -1, 12), ("loaded", -1, 15))
    again, other = moments(("begun", 0, 16.5), ("begun", 32, 15.5))

    assert recovery.find_recoveries([*death, again]) == [(14.5, 3.0)]
    assert recovery.find_recoveries([*death, other, again, again._replace(ns=10**9)]) == [(14.5, 3.0)]
    for wrong in (death, [*death, other], [*death[:3], again], [*death[:2], again]):
        with pytest.raises(ValueError, match="no recovery"):
            recovery.find_recoveries(wrong)


def test_lost_elements_are_counted(benchmark_module, tmp_path):
    """Headrace loses the bad element alone, Beam the pipeline."""
    survey = benchmark_module("workloads.casualties").survey
    with ThreadPoolExecutor() as pool:
        ours = pool.submit(survey, "Headrace", "SIGSEGV", {"use_subprocess": True}, tmp_path)
        theirs = pool.submit(survey, "Beam", "SIGKILL", {}, tmp_path)

    seconds = ours.result().pop("pipeline s")
    assert float(seconds) > 0
    assert ours.result() == {
        "the bad element": "SIGSEGV",
        "transform": "Headrace, use_subprocess=True",
        "predictions": "63",
        "dead letters": "1",
        "lost": "0",
        "process ended": "by itself",
    }
    assert theirs.result()["pipeline s"] == "no end"
    assert theirs.result()["process ended"] == "died of SIGKILL"
    assert int(theirs.result()["predictions"]) + int(theirs.result()["lost"]) == 64
