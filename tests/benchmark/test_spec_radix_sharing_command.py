# SPDX-License-Identifier: Apache-2.0
"""The benchmark of early sharing: what it counts and when it fails."""

import itertools
import random

import pytest

from common import cli
from harness import Result
from spec_radix_sharing import command
from spec_radix_sharing.agents import Branch, Branching, branch_points


def row(part="branching", same="yes", ratio=0.1):
    return {"part": part, "same": same, "recomputed_of_off": ratio}


def test_recomputed_is_what_was_known_and_not_cached():
    assert Branch(0, 100, 40, Result(0, cached_tokens=70)).recomputed == 30
    # A branch may also find what a sibling computed after it was sent.
    assert Branch(0, 100, 40, Result(0, cached_tokens=104)).recomputed == 0


def test_branch_points_fit_no_interval():
    work = Branching([[1]], output=4000, every=96)
    points = branch_points(random.Random(1), work)
    gaps = [b - a for a, b in itertools.pairwise([0, *points])]
    assert min(gaps) >= 48 and max(gaps) <= 144 and points[-1] < 4000
    assert 85 < sum(gaps) / len(gaps) < 107
    # Remainders of the default interval: anything.
    assert len({point % 64 for point in points}) > 20
    assert points == branch_points(random.Random(1), work)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row()], ""),
        ([row(ratio=None), row(ratio=0.3)], ""),
        ([row(ratio=0.31)], "branching: recomputed 0.31x, the target is 0.3x"),
        ([row("retraction", ratio=0.25)], "retraction: recomputed 0.25x"),
        ([row("pressure", ratio=0.9)], ""),
        ([row(same="no")], "branching: answers differ"),
    ],
)
def test_verdict(rows, message, capsys):
    expected = cli.EXIT_FAILED if message else cli.EXIT_OK
    assert command._verdict(rows) == expected
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--branch-every", "400"], "--branch-every 400 must be below --output 384"),
        (["--only", "cost", "--plot", "x.png"], "--only cost has none"),
    ],
)
def test_wrong_usage(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.run, command.arguments(), arguments) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


def test_arms_differ_in_the_flag_alone(tmp_path):
    options = command.arguments().parse_args(["--interval", "32"])
    for part in ("branching", "retraction", "pressure"):
        off = command._spec(options, tmp_path, part, on=False)
        on = command._spec(options, tmp_path, part, on=True)
        more = {"enable_spec_radix_sharing": True, "spec_radix_sharing_interval": 32}
        assert dict(on.flags) == {**off.flags, **more}
        assert on.env == off.env
