"""Descriptors: raised at the start, and shared between pages, links and everything else."""

import subprocess
import sys

import pytest

from anabranch.live.descriptors import (
    RESERVED,
    WANTED,
    fit,
    raise_limit,
    share_of_pages,
    warning,
)
from anabranch.live.transports.limits import Limits


@pytest.mark.parametrize("limit", [256, 512, 1_024, 4_096, 65_536])
def test_shares_leave_descriptors_in_reserve(limit: int) -> None:
    fitted = fit(Limits(pending=4_096, links=16_384), limit)
    taken = fitted.pending + fitted.links + fitted.refusals + share_of_pages(limit)
    assert taken <= limit - RESERVED
    assert min(fitted.pending, fitted.links, fitted.refusals) > 0
    assert 0 < fitted.pending_per_address <= fitted.pending // 4  # no address takes them all


def test_limits_that_fit_stay_as_they_are() -> None:
    assert fit(Limits(), 65_536) == Limits()


def test_warning_names_the_limit_and_the_remedy() -> None:
    assert warning(WANTED) == ""
    assert "1024 files" in warning(1_024)
    assert "ulimit -n" in warning(1_024)


def test_raise_limit_of_a_process_raises_it_to_what_the_system_allows() -> None:
    code = "from anabranch.live.descriptors import raise_limit; print(raise_limit())"
    few = ["sh", "-c", 'ulimit -Sn 128; exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(few, capture_output=True, text=True, check=True)
    assert int(done.stdout) == raise_limit() > 128
