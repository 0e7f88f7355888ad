# SPDX-License-Identifier: Apache-2.0
"""What the model answers, by transformers: no scheduler, no cache, no speculation."""

from __future__ import annotations

from collections.abc import Sequence

# Of logits in float32; two sums in another order differ by less.
TIE = 1e-3
BATCH_TOKENS = 16384


def check_answers(model: str, answers: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict:
    """Compares each token of greedy answers with the likeliest one after what precedes it.

    Args:
        model: folder.
        answers: pairs of prompt and output ids.

    Returns:
        ``tokens`` compared, ``ties`` (another token, as likely to ``TIE``) and ``wrong``, a
        list of texts.
    """
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found: dict = {"tokens": 0, "ties": 0, "wrong": []}
    todo = sorted((a for a in answers if a[1]), key=lambda a: len(a[0]) + len(a[1]))
    while todo:
        longest = len(todo[-1][0]) + len(todo[-1][1])
        batch = [todo.pop() for _ in range(min(len(todo), max(1, BATCH_TOKENS // longest)))]
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, (prompt, output) in zip(ids, batch, strict=True):
            row[: len(prompt) + len(output)] = torch.tensor([*prompt, *output])
        # Fillers stand behind the text, where no token of it looks.
        with torch.inference_mode():
            logits = reference(ids).logits
        for (prompt, output), row in zip(batch, logits, strict=True):
            _compare(row[len(prompt) - 1 :][: len(output)], prompt, output, found)
    return found


def _compare(logits, prompt, output, found):
    import torch

    given = torch.tensor(output)
    behind = logits.max(-1).values - logits.gather(-1, given[:, None])[:, 0]
    found["tokens"] += len(output)
    found["ties"] += int(((behind > 0) & (behind <= TIE)).sum())
    bad = (behind > TIE).nonzero().flatten().tolist()
    if bad:
        at = bad[0]
        best = int(logits[at].argmax())
        found["wrong"].append(
            f"prompt of {len(prompt)}, output token {at} of {len(output)} is {output[at]}, "
            f"the model says {best} (behind by {float(behind[at]):.4f})"
        )
