# SPDX-License-Identifier: Apache-2.0
"""Trace files: both formats, their recognition, and what malformed lines report."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from eviction.readers import TraceError, read_trace

SHARED_TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"


def mooncake(timestamp: float = 0, ids: tuple[object, ...] = (7, 8), **other: object) -> dict:
    record = {
        "timestamp": timestamp,
        "input_length": 512 * len(ids),
        "output_length": 100,
        "hash_ids": list(ids),
    }
    return {**record, **other}


def bailian(
    chat: int, parent: int, timestamp: float, ids: tuple[int, ...], output: int, **other: object
) -> dict:
    record = {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": timestamp,
        "input_length": 16 * len(ids),
        "output_length": output,
        "type": "text",
        "turn": 1,
        "hash_ids": list(ids),
    }
    return {**record, **other}


def write(path: Path, records: list[object]) -> Path:
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_mooncake_times_are_milliseconds_from_the_first_request(tmp_path):
    trace = read_trace(write(tmp_path / "t.jsonl", [mooncake(5000), mooncake(6500, (7, 9))]))
    assert trace.block_tokens == 512
    assert [r.arrival_s for r in trace.requests] == [0.0, 1.5]
    first, second = (r.blocks for r in trace.requests)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert trace.requests[0].output_tokens == 100
    assert trace.requests[0].output_blocks == ()


def test_requests_are_put_in_order_of_arrival_and_ties_keep_the_files(tmp_path):
    records = [mooncake(30, (1,)), mooncake(10, (2,)), mooncake(30, (3,)), mooncake(10, (4,))]
    trace = read_trace(write(tmp_path / "t.jsonl", records))
    assert [r.arrival_s for r in trace.requests] == [0, 0, 0.02, 0.02]
    # Blocks are numbered as they are met, so the order shows in the numbers.
    assert [r.blocks for r in trace.requests] == [(0,), (1,), (2,), (3,)]


def test_compressed_files_blank_lines_and_limit(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    with gzip.open(path, "wt") as out:
        for index in range(5):
            out.write(json.dumps(mooncake(index, (index,))) + "\n\n")
    assert len(read_trace(path).requests) == 5
    assert len(read_trace(path, limit=2).requests) == 2
    assert read_trace(path).name == "t"


def test_bailian_answer_blocks_come_from_the_follow_up(tmp_path):
    # Turn 1: 2 full blocks and 8 tokens; its answer of 40 tokens ends block 4.
    first = bailian(1, -1, 10.0, (1, 2, 90), 40, input_length=40)
    second = bailian(2, 1, 12.5, (1, 2, 3, 4, 5, 6), 16)
    trace = read_trace(write(tmp_path / "q.jsonl", [first, second]))
    assert trace.block_tokens == 16
    one, two = trace.requests
    assert two.arrival_s == 2.5
    assert one.blocks == two.blocks[:2]
    assert one.path == two.blocks[:5]
    # The last turn has no follow-up: its answer gets an id that nothing else has.
    assert len(two.output_blocks) == 1
    assert two.output_blocks[0] not in {*one.path, *two.blocks}


def test_bailian_answer_has_fresh_blocks_where_the_follow_up_differs(tmp_path):
    first = bailian(1, -1, 0.0, (1, 2), 32)
    second = bailian(2, 1, 1.0, (1, 3, 4, 5), 0)
    one, two = read_trace(write(tmp_path / "q.jsonl", [first, second])).requests
    assert len(one.output_blocks) == 2
    assert not set(one.output_blocks) & set(two.path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "line 2: not JSON"),
        ("[1, 2]", "line 2: not a JSON object"),
        (mooncake(timestamp=-1), "line 2: timestamp must be a number of at least 0"),
        (mooncake(timestamp=True), "line 2: timestamp must be a number"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": []}', "timestamp"),
        (mooncake(input_length="3"), "line 2: input_length must be an integer of at least 0"),
        (mooncake(output_length=-4), "line 2: output_length must be an integer of at least 0"),
        (mooncake(hash_ids=7), "line 2: hash_ids must be a list"),
        (mooncake(ids=(1.5,)), "line 2: hash_ids must be a list of integers or strings"),
        ({"timestamp": 1}, "line 2: lacks input_length"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, message):
    with pytest.raises(TraceError, match=message) as error:
        read_trace(write(tmp_path / "bad.jsonl", [mooncake(), line]))
    assert "bad.jsonl" in str(error.value)
    assert str(tmp_path) not in str(error.value)


def test_an_unknown_format_names_both_known_ones(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"prompt": "hello"}])
    with pytest.raises(TraceError, match=r"line 1: lacks timestamp.*Mooncake.*Qwen-Bailian"):
        read_trace(path)


def test_a_bailian_line_without_its_parent_is_named(tmp_path):
    second = bailian(2, 1, 1.0, (1,), 0)
    del second["parent_chat_id"]
    path = write(tmp_path / "q.jsonl", [bailian(1, -1, 0.0, (1,), 0), second])
    with pytest.raises(TraceError, match="line 2: lacks parent_chat_id"):
        read_trace(path)


def test_another_block_size_is_refused(tmp_path):
    path = write(tmp_path / "t.jsonl", [mooncake(input_length=2 * 64)])
    with pytest.raises(TraceError, match=r"64 prompt tokens a block.*512-token blocks"):
        read_trace(path)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_file_is_refused(tmp_path, content):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"empty\.jsonl holds no request"):
        read_trace(path)


def test_binary_and_truncated_files_are_refused(tmp_path):
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="line 1: not UTF-8 text"):
        read_trace(tmp_path / "b.jsonl")
    whole = gzip.compress(json.dumps(mooncake()).encode() * 50)
    (tmp_path / "g.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"cannot read g\.jsonl\.gz"):
        read_trace(tmp_path / "g.jsonl.gz")
    with pytest.raises(TraceError, match=r"cannot read none\.jsonl"):
        read_trace(tmp_path / "none.jsonl")


@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="needs the development traces")
def test_the_development_traces_are_read_whole():
    conversation = read_trace(SHARED_TRACES / "conversation_dev.jsonl")
    assert len(conversation.requests) == 6015
    assert conversation.footprint() == 100_131
    # Block 0 is the system prompt, in all requests.
    assert {r.blocks[0] for r in conversation.requests} == {0}
    agents = read_trace(SHARED_TRACES / "agents_dev.jsonl")
    assert len(agents.requests) == 3763
    assert agents.longest_path() == 390
