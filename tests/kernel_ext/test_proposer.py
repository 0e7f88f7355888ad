# SPDX-License-Identifier: Apache-2.0
"""The draft proposer: against the reference, and what a server relies on."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from kernel_ext.reference import ReferenceProposer

sam = pytest.importorskip("sgl_kernel_ext.suffix_automaton", reason="needs sgl-kernel-ext")

VOCABULARY = 1000


def proposer(**settings):
    settings = {"draft_token_num": 8, "vocab_size": VOCABULARY, "mode": "full", **settings}
    return sam.DraftProposer(sam.ProposerConfig(**settings))


def paths(batch, i: int = 0) -> dict[tuple[int, ...], float]:
    """The tree of request i as {path: probability}."""
    found: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(1, int(batch.sizes[i])):
        found[node] = (*found[int(batch.parents[i, node])], int(batch.tokens[i, node]))
    return {path: float(batch.probabilities[i, node]) for node, path in found.items() if node}


def wordy(seed: int, length: int, words: int = 12) -> list[int]:
    """Text of phrases that come back with changes, so that contexts of every length hit."""
    rng = random.Random(seed)
    phrases = [[rng.randrange(20) for _ in range(rng.randint(2, 9))] for _ in range(words)]
    text: list[int] = []
    while len(text) < length:
        phrase = list(rng.choice(phrases))
        if rng.random() < 0.2:
            phrase[rng.randrange(len(phrase))] = rng.randrange(20)
        text += phrase
    return text[:length]


def accepted_by(tree: dict[tuple[int, ...], float], truth: list[int]) -> int:
    """Number of drafted tokens on the longest path of the tree that `truth` starts with."""
    n = 0
    while tuple(truth[: n + 1]) in tree and n < len(truth) - 1:
        n += 1
    return n


@pytest.mark.parametrize("mode", ["fast", "full"])
@pytest.mark.parametrize("seed", range(2))
def test_trees_are_those_of_the_reference(mode, seed):
    """Two requests decode in turn; every tree, with all that was learned before it."""
    width, own_depth, shared_depth = 8, 10, 6
    ours = proposer(
        mode=mode, draft_token_num=width, own_depth=own_depth, shared_depth=shared_depth
    )
    plain = ReferenceProposer(mode == "full", width, own_depth, shared_depth, 0.0)
    text = {r: wordy(100 * seed, 120) if r == 0 else wordy(100 * seed + r, 120) for r in (0, 1)}
    prompt, at = 50, {0: 51, 1: 51}
    for request in text:
        ours.begin(request, text[request][:51], shared_from=prompt)
        plain.begin(request, text[request][:51], shared_from=prompt)
    produced: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(14):
        batch = ours.step([0, 1], [produced[0], produced[1]])
        for request in (0, 1):
            plain.append(request, produced[request])
        for request in (0, 1):
            tree, expected = paths(batch, request), plain.draft(request)
            wanted = sorted(expected.values(), reverse=True)
            assert sorted(tree.values(), reverse=True) == pytest.approx(wanted, rel=2e-3, abs=1e-6)
            n = accepted_by(tree, text[request][at[request] :])
            produced[request] = text[request][at[request] : at[request] + n + 1]
            at[request] += len(produced[request])


def check_tree(batch, i, width, threshold):
    size = int(batch.sizes[i])
    assert 1 <= size <= width
    assert batch.parents[i, 0] == -1
    siblings = set()
    for node in range(1, size):
        parent = int(batch.parents[i, node])
        assert 0 <= parent < node
        assert (parent, int(batch.tokens[i, node])) not in siblings
        siblings.add((parent, int(batch.tokens[i, node])))
        assert batch.probabilities[i, node] <= batch.probabilities[i, parent]
        assert batch.probabilities[i, node] >= threshold
        assert (batch.mask[i, node] == (batch.mask[i, parent] | (np.arange(width) == node))).all()
    for node in range(size, width):  # padding: token 0 directly below the root
        assert batch.tokens[i, node] == 0
        assert np.flatnonzero(batch.mask[i, node]).tolist() == [0, node]


@pytest.mark.parametrize("mode", ["fast", "full"])
@pytest.mark.parametrize("width", [1, 2, 4, 12, 64])
@pytest.mark.parametrize("threshold", [0.0, 0.1, 1.0])
def test_trees_are_well_formed(mode, width, threshold):
    ours = proposer(mode=mode, draft_token_num=width, threshold=threshold)
    text = wordy(5, 400)
    ours.begin(1, text[:200], shared_from=190)
    at = 200
    while at < len(text):
        batch = ours.step([1], [text[at : at + 2]])
        check_tree(batch, 0, width, threshold)
        assert batch.tokens[0, 0] == text[min(at + 1, len(text) - 1)]
        at += 2


def test_a_higher_threshold_drafts_less():
    sizes = []
    for threshold in (0.0, 0.05, 0.3, 0.9):
        ours = proposer(threshold=threshold, draft_token_num=16)
        ours.begin(1, wordy(5, 300))
        sizes.append(int(ours.step([1], [[]]).sizes[0]))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 16
    assert sizes[-1] < 16


def decode(ours, seed: int, requests: int, steps: int) -> list:
    """What a server does with a batch: returns all trees."""
    rng = random.Random(seed)
    text = {r: wordy(seed + r % 3, 400) for r in range(requests)}
    at = dict.fromkeys(text, 100)
    out = []
    for r in text:
        ours.begin(r, text[r][:100], shared_from=99, namespace="ab"[r % 2])
    for _ in range(steps):
        live = [r for r in text if rng.random() < 0.8 and ours.lengths([r])[0] >= 0]
        produced = []
        for r in live:
            n = rng.randint(1, 4)
            produced.append(text[r][at[r] : at[r] + n])
            at[r] += n
        batch = ours.step(live, produced)
        out.append([paths(batch, i) for i in range(len(live))])
    return out


@pytest.mark.parametrize("mode", ["fast", "full"])
def test_equal_calls_give_equal_trees(mode):
    """As tensor-parallel ranks need it: bit for bit, with bounds that are hit on the way."""
    settings = {
        "mode": mode,
        "max_shared_tokens": 200,
        "max_request_tokens": 128,
        "max_total_tokens": 700,
    }
    assert decode(proposer(**settings), 3, 6, 40) == decode(proposer(**settings), 3, 6, 40)


def test_reset_forgets_everything():
    ours = proposer()
    first = decode(ours, 1, 4, 20)
    ours.reset()
    assert ours.counters()["requests"] == ours.counters()["shared_tokens"] == 0
    assert decode(ours, 1, 4, 20) == first


def test_namespaces_do_not_see_each_other():
    secret = [901, 902, 903, 904, 905]
    ours = proposer()
    ours.begin(1, [1, 2, 3] + secret * 3, shared_from=3, namespace="tenant a")
    for other in ("tenant b", "", "tenant a "):
        ours.begin(2, [1, 2, 901], namespace=other)
        drafted = {token for path in paths(ours.step([2], [[902]])) for token in path}
        assert not drafted & {903, 904, 905}
    ours.begin(2, [1, 2, 901], namespace="tenant a")
    assert (903,) in paths(ours.step([2], [[902]]))


def test_prompts_are_not_shared():
    ours = proposer()
    ours.begin(1, [901, 902, 903, 904, 1], shared_from=4)
    ours.step([1], [[2]])
    ours.begin(2, [5, 901])
    assert (903,) not in paths(ours.step([2], [[902]]))


def test_sharing_can_be_switched_off():
    ours = proposer(share_outputs=False)
    ours.begin(1, [901, 902, 903, 904], shared_from=0)
    ours.begin(2, [5, 901])
    assert not {903, 904} & {t for path in paths(ours.step([2], [[902]])) for t in path}
    assert ours.counters()["shared_tokens"] == 0


def test_an_id_that_is_used_again_starts_anew():
    ours = proposer(share_outputs=False)
    ours.begin(7, [901, 902, 903] * 20)
    ours.step([7], [[901]])
    ours.begin(7, [1, 2, 3, 901])
    assert ours.lengths([7]).tolist() == [4]
    tokens = {t for path in paths(ours.step([7], [[902]])) for t in path}
    assert tokens <= {1, 2, 3, 901, 902}
    assert 903 not in tokens


def test_a_dropped_request_is_unknown_and_can_come_back():
    ours = proposer(share_outputs=False)
    text = wordy(9, 200)
    ours.begin(1, text)
    expected = paths(ours.step([1], [[]]))
    ours.end(1)
    assert ours.lengths([1]).tolist() == [-1]
    assert ours.counters()["own_tokens"] == 0
    with pytest.raises(IndexError, match="request 1 is not known"):
        ours.step([1], [[1]])
    ours.begin(1, text)
    assert paths(ours.step([1], [[]])) == expected


def test_an_unknown_request_changes_nothing():
    ours = proposer()
    ours.begin(1, [1, 2, 3])
    before = ours.counters()
    with pytest.raises(IndexError, match="request 2"):
        ours.step([1, 2], [[4], [5]])
    assert ours.counters() == before
    assert ours.lengths([1]).tolist() == [3]


@pytest.mark.parametrize("mode", ["fast", "full"])
def test_requests_are_bounded_and_oldest_tokens_go_first(mode):
    ours = proposer(mode=mode, max_request_tokens=256, share_outputs=False)
    ours.begin(1, [900, 901, 902, 903, *wordy(2, 150)])
    ours.append(1, [900, 901])
    assert (902,) in paths(ours.step([1], [[]]))
    for start in range(0, 2000, 50):
        ours.append(1, wordy(start, 50))
        # The index, and the start of the one that takes over.
        assert ours.counters()["own_tokens"] <= 256 + 128
    ours.append(1, [900, 901])
    assert (902,) not in paths(ours.step([1], [[]]))
    counters = ours.counters()
    assert counters["own_tokens_dropped"] > 1500
    assert ours.lengths([1]).tolist() == [154 + 2 + 2000 + 2]


def test_a_long_prompt_keeps_its_end():
    ours = proposer(max_request_tokens=256, share_outputs=False)
    ours.begin(1, [*wordy(2, 5000), 900, 901, 902, 5, 900, 901])
    assert (902,) in paths(ours.step([1], [[]]))
    assert ours.counters()["own_tokens_dropped"] > 4000


def test_all_requests_together_are_bounded():
    ours = proposer(max_total_tokens=1000)
    for request in range(10):
        ours.begin(request, wordy(request, 300))
    counters = ours.counters()
    assert counters["own_tokens"] <= 1000
    assert counters["requests_dropped"] == 7
    assert ours.lengths(range(10)).tolist() == [-1] * 7 + [300] * 3


@pytest.mark.parametrize("total", [64, 1000])
def test_the_bound_of_all_requests_holds_for_a_single_one(total):
    """Also while the index that takes over is filled, and with a larger bound of its own."""
    ours = proposer(max_total_tokens=total, share_outputs=False)
    ours.begin(1, wordy(1, 5000))
    for start in range(0, 3000, 10):
        ours.append(1, wordy(start, 10))
        assert ours.counters()["own_tokens"] <= total
    ours.append(1, [900, 901, 902, 5, 900, 901])
    assert (902,) in paths(ours.step([1], [[]]))


def test_shared_outputs_are_bounded():
    ours = proposer(max_shared_tokens=128)
    ours.begin(1, [1, 900, 901, 902], shared_from=1)
    ours.begin(2, [5])
    ours.append(2, [900])
    assert (902,) in paths(ours.step([2], [[901]]))
    for start in range(40):
        ours.begin(3, wordy(start, 50), shared_from=0, namespace="b" if start % 5 == 4 else "")
        assert ours.counters()["shared_tokens"] <= 192 + 64
    ours.append(2, [5, 900])
    ours.begin(4, [5, 900])
    assert (902,) not in paths(ours.step([4], [[901]]))
    assert ours.counters()["shared_tokens_dropped"] > 1000


def test_many_namespaces_are_bounded():
    ours = proposer(max_shared_tokens=128)
    for tenant in range(50):
        ours.begin(1, wordy(tenant, 40), shared_from=0, namespace=f"tenant {tenant}")
        assert ours.counters()["shared_tokens"] <= 192 + 40
    assert ours.counters()["namespaces_dropped"] > 40


def test_multimodal_padding_never_enters():
    """Padding ids are hashes outside the vocabulary; no context may reach across them."""
    ours = proposer(share_outputs=False)
    for pad in (VOCABULARY, 2**40, -3):
        ours.begin(1, [1, 2, 3] + [pad] * 20 + [4, 5, 6] + [pad] * 20 + [4, 5])
        tree = paths(ours.step([1], [[]]))
        assert (6,) in tree
        assert all(0 <= token < VOCABULARY for path in tree for token in path)
        assert all(path[:2] != (6, 4) for path in tree)
    ours.begin(1, [1, 2, VOCABULARY])
    assert ours.step([1], [[]]).sizes.tolist() == [1]


def test_empty_texts_and_empty_batches():
    ours = proposer()
    ours.begin(1, [])
    assert ours.step([1], [[]]).sizes.tolist() == [1]
    assert ours.step([], []).tokens.shape == (0, 8)
    ours.end(99)


def test_a_failing_request_pauses_and_recovers():
    ours = proposer(pause_below=0.5, pause_window=8, share_outputs=False)
    ours.begin(1, [1, 2, 3, 4] * 10)
    rng = random.Random(0)
    sizes = [int(ours.step([1], [[rng.randrange(100, 900)]]).sizes[0]) for _ in range(12)]
    assert sizes[0] > 1
    assert ours.counters()["pauses"] == 1
    assert sizes[-1] == 1
    recovered = []
    for _ in range(30):  # now it repeats itself: after the pause a trial is accepted
        batch = ours.step([1], [[1, 2]])
        recovered.append(int(batch.sizes[0]))
    assert recovered[-1] > 1
    assert ours.counters()["recoveries"] == 1
    assert ours.counters()["paused_steps"] == 16


def test_pauses_grow_while_nothing_is_accepted():
    ours = proposer(pause_below=0.5, pause_window=4, share_outputs=False)
    ours.begin(1, [1, 2, 3, 4] * 10)
    rng = random.Random(0)
    drafting = [int(ours.step([1], [[rng.randrange(100, 900)]]).sizes[0]) > 1 for _ in range(400)]
    runs, run = [], 0
    for active in drafting:
        if active and run:
            runs.append(run)
            run = 0
        run += not active
    assert runs[:3] == [16, 32, 64]


def test_a_step_that_drafted_nothing_is_no_failure():
    ours = proposer(pause_below=0.5, pause_window=8, threshold=1.0, share_outputs=False)
    ours.begin(1, [1, 2, 3, 4] * 10)
    for token in range(100, 140):
        assert ours.step([1], [[token]]).sizes.tolist() == [1]
    counters = ours.counters()
    assert counters["pauses"] == counters["paused_steps"] == 0


def rows(seed: int, length: int) -> list[int]:
    """Text of a table: equal columns of three values."""
    rng = random.Random(seed)
    text: list[int] = []
    while len(text) < length:
        text += [1, 100 + rng.randrange(3), 2, 120 + rng.randrange(3), 90]
    return text[:length]


def test_a_surprise_after_a_long_run_spoils_no_weight():
    """All contexts of a run are sure and wrong at its end: what is left of the blend is 0."""
    ours = proposer(draft_token_num=12)
    outputs = [rows(0, 900), rows(1, 900), [*rows(2, 200), *[50] * 80, 60]]
    for request, output in enumerate(outputs):
        ours.begin(request, [700])
        for token in output:
            ours.step([request], [[token]])
    ours.begin(9, [5] * 60)
    for token in [*[5] * 31, 300, *[5] * 30]:
        batch = ours.step([9], [[token]])
    assert np.isfinite(batch.probabilities).all()
    assert paths(batch)[(5,)] > 0.5  # 0.001 once a weight is no number


def test_threads_share_one_proposer():
    ours = proposer(share_outputs=False)
    text = {r: wordy(r, 600) for r in range(4)}
    failures = []

    def work(request: int) -> None:
        try:
            ours.begin(request, text[request][:100])
            for at in range(100, 600, 2):
                ours.step([request], [text[request][at : at + 2]])
        except Exception as error:  # reported below; a thread's exception would be lost
            failures.append(error)

    threads = [threading.Thread(target=work, args=(r,)) for r in text]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert ours.lengths(list(text)).tolist() == [600] * 4
    assert ours.counters()["own_tokens"] == 2400


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("draft_token_num", 0, "draft_token_num must be between 1 and 64, not 0"),
        ("vocab_size", 0, "vocab_size must be between 1 and"),
        ("mode", "quick", "mode must be 'fast' or 'full', not 'quick'"),
        ("threshold", 1.5, "threshold must be between 0 and 1, not 1.5"),
        ("own_depth", 33, "own_depth must be between 1 and 32, not 33"),
        ("max_request_tokens", 10, "max_request_tokens must be between 64 and"),
        ("pause_below", -1.0, "pause_below must be between 0 and draft_token_num"),
    ],
)
def test_settings_are_checked(setting, value, message):
    with pytest.raises(ValueError, match=message):
        proposer(**{setting: value})


def test_calls_are_checked():
    ours = proposer()
    with pytest.raises(ValueError, match="shared_from must be between 0 and 2, not 3"):
        ours.begin(1, [1, 2], shared_from=3)
    with pytest.raises(ValueError, match="1 requests but 2 token sequences"):
        ours.step([1], [[1], [2]])
    with pytest.raises(ValueError, match="offsets must lie within tokens"):
        ours.step_flat(np.array([], np.uint64), np.array([], np.int64), np.array([5], np.int64))


def hint(*nodes: tuple[int, int], width: int = 8):
    """A tree of another proposer: (parent, token) from node 1 on."""
    tokens, parents = np.zeros((1, width), np.int64), np.full((1, width), -2, np.int32)
    for i, (parent, token) in enumerate(nodes, 1):
        parents[0, i], tokens[0, i] = parent, token
    return tokens, parents


def step_with(ours, produced: list[int], hints):
    flat = np.array(produced, np.int64)
    return ours.step_flat(np.array([1], np.uint64), flat, np.array([0, len(flat)], np.int64), hints)


@pytest.mark.parametrize("mode", ["fast", "full"])
def test_a_hint_is_followed_as_far_as_it_proves_right(mode):
    ours = proposer(mode=mode, share_outputs=False)
    ours.begin(1, [1, 2, 3])
    tree = paths(step_with(ours, [], hint((0, 50), (1, 51), (0, 60), (-2, 70), (4, 71))))
    assert {(50,), (60,)} <= set(tree)
    assert not {70, 71} & {token for path in tree for token in path}
    first = tree[(50,)]
    for i in range(30):  # the hint is right every time, the own text never repeats
        tree = paths(
            step_with(ours, [100 + 2 * i, 101 + 2 * i], hint((0, 102 + 2 * i), (1, 103 + 2 * i)))
        )
    assert tree[(160,)] > max(0.5, 2 * first)
    for i in range(200):  # and now it is wrong
        tree = paths(step_with(ours, [200 + i], hint((0, 500), (1, 501))))
    assert tree[(500,)] < 0.1


def test_a_hint_outside_the_vocabulary_is_left_out():
    ours = proposer(share_outputs=False)
    ours.begin(1, [1, 2, 3])
    tree = paths(step_with(ours, [], hint((0, VOCABULARY), (1, 5), (0, -4), (9, 6))))
    assert {token for path in tree for token in path} <= {1, 2, 3}


def test_hints_must_fit_the_batch():
    ours = proposer()
    ours.begin(1, [1])
    with pytest.raises(ValueError, match="hints must be trees of draft_token_num places"):
        step_with(ours, [], hint(width=4))


def test_namespaces_without_outputs_are_bounded_too():
    ours = proposer(max_shared_tokens=1000)
    for tenant in range(100):
        ours.begin(tenant, [1, 2, 3], namespace=f"tenant {tenant}")
    assert ours.counters()["namespaces"] <= 1500 / 64
    assert ours.step(range(100), [[4]] * 100).sizes.min() >= 1  # the others draft as before


def origins(batch) -> dict[tuple[int, ...], tuple[str, int]]:
    """What made each path of the only tree likely: (source, matched tokens)."""
    found = {}
    nodes = {path: node for node, path in enumerate(paths(batch), 1)}
    for path, node in nodes.items():
        source = sam.SOURCES[batch.sources[0, node]]
        found[path] = (source, int(batch.match_lengths[0, node]))
    return found


@pytest.mark.parametrize("mode", ["fast", "full"])
def test_a_draft_says_where_it_comes_from(mode):
    ours = proposer(mode=mode)
    ours.begin(1, [1, 2, 3, 4, 5, 6, 9, 2, 3, 4])
    assert origins(ours.step([1], [[5]]))[(6,)] == ("request", 4)
    ours.begin(2, [1, 701, 702, 703, 704], shared_from=1)
    ours.begin(1, [50, 701])
    assert origins(ours.step([1], [[702, 703]]))[(704,)] == ("shared", 3)
    ours.begin(1, [800, 801])
    assert origins(step_with(ours, [802], hint((0, 600))))[(600,)] == ("corpus", 0)


def test_the_root_and_padding_have_no_source():
    ours = proposer(threshold=0.99)
    ours.begin(1, [1, 2, 3])
    batch = ours.step([1], [[4]])
    assert batch.sizes.tolist() == [1]
    assert not batch.sources.any() and not batch.match_lengths.any()


def test_a_context_that_another_request_wrote_later_is_found():
    """Upstream issue 38129: a request that had looked in vain missed what came in afterwards."""
    ours = proposer()
    ours.begin(1, [5, 700])
    assert (702,) not in paths(ours.step([1], [[701]]))
    ours.begin(2, [6, 700, 701, 702, 703], shared_from=1)
    assert {(702,), (702, 703)} <= set(paths(ours.step([1], [[]])))


def test_asking_again_does_not_count_again():
    """Upstream's PROB mode re-inserts the tail each step: seen once, it outranks seen thrice."""
    trees = []
    for asked in (1, 20):
        ours = proposer(share_outputs=False)
        ours.begin(1, [7, 8, 1, 7, 8, 1, 7, 8, 1, 7, 8, 2, 7])
        for _ in range(asked):
            ours.step([1], [[]])
        trees.append(paths(ours.step([1], [[8]])))
    assert trees[0] == trees[1]
    assert trees[1][(1,)] > trees[1][(2,)]


def test_repeated_markers_are_matched_at_their_full_length():
    """vllm 40875: tool calls repeat a marker, and a short match chose the wrong call."""
    marker = [40, 41, 42]
    calls = [[*([n] * 2), *marker, 100 + n] for n in range(6)]
    ours = proposer(share_outputs=False)
    ours.begin(1, [token for call in calls for token in call])
    for n in (0, 3):  # not the latest, which the marker alone would give
        tree = paths(ours.step([1], [[n, n, *marker]]))
        assert max((p, t) for t, p in tree.items() if len(t) == 1)[1] == (100 + n,)
        ours.append(1, [100 + n])
