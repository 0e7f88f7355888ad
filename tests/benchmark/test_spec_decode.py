# SPDX-License-Identifier: Apache-2.0
"""The replay of draft proposers: verification, its sums, and the targets read from them."""

from __future__ import annotations

import numpy as np
import pytest

from common.cli import EXIT_FAILED, EXIT_OK, BenchError
from spec_decode import proposers, targets
from spec_decode.drafts import Draft, Proposer, accepted
from spec_decode.lookup import LookupProposer
from spec_decode.replay import BATCH, batch_step_ms, replay
from spec_decode.report import ALL_SETS
from spec_decode.samples import Sample


def test_a_tree_is_accepted_along_the_longest_right_path():
    #  root -> 5 -> 6 -> 9,  root -> 7 -> 8 (the nodes in no particular order)
    tree = Draft([7, 5, 6, 8, 9], [-1, -1, 1, 0, 2])
    assert accepted(tree, [5, 6, 9, 1]) == 3
    assert accepted(tree, [7, 8]) == 2
    assert accepted(tree, [6, 9]) == 0  # no node below the root
    assert accepted(Draft.chain([1, 2, 3]), [1, 2, 4]) == 2


class Oracle(Proposer):
    """Drafts `right` tokens of the truth, then a wrong one."""

    name = "oracle"

    def __init__(self, width: int, samples: list[Sample], right: int) -> None:
        super().__init__(width)
        self.samples, self.right, self.at = samples, right, {}

    def begin(self, request, prompt):
        self.at[request] = len(prompt)
        assert prompt.tolist() == self.samples[request].text[: len(prompt)].tolist()

    def update(self, requests, tokens):
        for request, produced in zip(requests, tokens, strict=True):
            at = self.at[request]
            expected = self.samples[request].text[at : at + len(produced)]
            assert produced.tolist() == expected.tolist()
            self.at[request] += len(produced)

    def propose(self, requests):
        out = []
        for request in requests:
            text, at = self.samples[request].text, self.at[request]
            out.append(Draft.chain([*text[at : at + self.right].tolist(), -9]))
        return out

    def end(self, request):
        assert self.at.pop(request) == len(self.samples[request].text)


def test_sums_of_a_replay():
    samples = [Sample.of([1, 2, 3], list(range(10, 20))), Sample.of([4], [5, 6])]
    out = replay(Oracle(4, samples, 2), "set", samples)
    # 10 tokens: 1 by the prefill, then 3 a step; 2 tokens: 1 by the prefill, 1 of the first step.
    assert (out.requests, out.steps, out.output_tokens) == (2, 4, 12)
    assert out.mal == 12 / 6
    assert (out.drafted, out.accepted) == (3 * 3 + 2, 3 * 2 + 1)


def test_a_batch_takes_in_the_next_request_when_one_ends():
    samples = [Sample.of([1], list(range(n % 5 + 2))) for n in range(2 * BATCH)]

    class Checked(Oracle):
        def end(self, request):
            self.at.pop(request)

    assert batch_step_ms(Checked(4, samples, 1), samples, BATCH) > 0
    assert batch_step_ms(Checked(4, samples, 1), samples[: BATCH - 1], BATCH) is None


@pytest.mark.parametrize(
    ("text", "longest", "shortest", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 4, 1, 2], 5, 2, [3, 9, 1]),  # the first place of the longest match
        ([9, 1, 2, 3, 5, 1, 2, 4, 5, 1, 2], 5, 2, [4, 5, 1]),  # longer beats earlier
        ([1, 2, 3, 2], 5, 2, []),  # one token is too short for vLLM's
        ([1, 2, 3, 2], 3, 1, [3, 2]),  # and enough for prompt lookup
        ([1, 2, 3], 3, 1, []),
    ],
)
def test_lookup_copies_what_followed(text, longest, shortest, expected):
    proposer = LookupProposer(4, longest, shortest)
    proposer.begin(0, np.array(text[:2], np.int32))
    proposer.update([0], [np.array(text[2:], np.int32)])
    assert list(proposer.drafts(proposer.propose([0]))[0].tokens) == expected


def test_a_choice_names_a_proposer_and_a_threshold():
    assert proposers.parse("full") == ("full", 0.0)
    assert proposers.parse("full@0.15") == ("full", 0.15)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("fulll", "no proposer 'fulll'; choose from full, fast"),
        ("full@2", "'2' is not a threshold between 0 and 1"),
        ("full@", "'' is not a threshold"),
        ("upstream@0.1", "upstream has no threshold; full, fast, sam-chain, arctic have"),
    ],
)
def test_choices_are_checked(choice, message):
    with pytest.raises(BenchError, match=message):
        proposers.parse(choice)


def rows(**changes: dict) -> list[dict]:
    """A run that meets every target; `changes` by proposer."""
    base = {
        "width": 12,
        "mal": 2.0,
        "accept_rate": 0.5,
        "prompt_tokens_per_s": 1e6,
        "propose_us": 20.0,
        "batch_step_ms": 5.0,
        "bytes_per_token": 90.0,
    }
    runs = {
        "full": {"mal": 2.7, "accept_rate": 0.2},
        "full@0.15": {"mal": 2.1, "accept_rate": 0.51},
        "fast": {"mal": 2.6, "accept_rate": 0.2, "prompt_tokens_per_s": 3e6},
        "arctic": {},
        "upstream": {"mal": 2.3, "accept_rate": 0.1},
    }
    return [
        base | {"proposer": name, "set": name_of_set} | run | changes.get(name, {})
        for name, run in runs.items()
        for name_of_set in ("one", ALL_SETS)
    ]


def test_targets_that_are_met(capsys):
    assert targets.check(rows()) == EXIT_OK
    assert "NO" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"full": {"mal": 2.5}}, "full: MAL at least 2.60"),
        ({"upstream": {"mal": 2.8}}, "above every other proposer"),
        ({"full@0.15": {"accept_rate": 0.49}}, "a threshold"),
        ({"full@0.15": {"mal": 1.9}}, "a threshold"),
        ({"fast": {"prompt_tokens_per_s": 1.9e6}}, "fast: prompt tokens/s at least 2x"),
        ({"fast": {"batch_step_ms": 5.1}}, "fast: step of 64 at most 1x"),
        ({"fast": {"propose_us": 21.0}}, "fast: proposal at most 1x"),
        ({"full": {"bytes_per_token": 401.0}}, "full: at most 400 bytes"),
    ],
)
def test_a_missed_target_is_named_and_fails_the_run(changes, missed, capsys):
    assert targets.check(rows(**changes)) == EXIT_FAILED
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " NO " in line]
    assert missed in line


def test_targets_need_arctic_in_the_run():
    with pytest.raises(BenchError, match="--check needs arctic at width 12"):
        targets.check([row for row in rows() if row["proposer"] != "arctic"])
