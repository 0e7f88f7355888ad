# SPDX-License-Identifier: Apache-2.0
"""The command line: a whole small run, its files, and what wrong input reports."""

from __future__ import annotations

import json

import pytest

from common import cli, result
from eviction import command, policies
from eviction.workloads import WORKLOADS

MEASURED = {
    "hit_ratio",
    "token_hit_ratio",
    "gap_closed",
    "request_us",
    "eviction_us",
    "state_bytes",
}


def run(*argv: str) -> int:
    return cli.main(command.run, command.arguments(), argv)


def test_a_small_run_writes_table_json_and_plot(tmp_path, capsys):
    json_file, plot_file = tmp_path / "r.json", tmp_path / "r.png"
    code = run(
        "--workloads=multi-turn-chat,agent-fleet",
        "--limit=60",
        "--capacity=80,160",
        "--policies=lru@python,gdsf",
        f"--json={json_file}",
        f"--plot={plot_file}",
    )
    printed = capsys.readouterr()
    assert code == cli.EXIT_OK
    assert "multi-turn-chat: 60 requests" in printed.out
    assert "all cells" in printed.out
    for header in ("block hit", "token hit", "gap closed", "us/request", "us/evict", "state"):
        assert header in printed.out
    assert "agent-fleet, 160 blocks: optimum" in printed.err
    assert plot_file.read_bytes().startswith(b"\x89PNG")

    document = result.read(json_file)
    assert document["benchmark"] == "eviction"
    assert document["settings"]["capacity"] == [80, 160]
    assert document["settings"]["workloads"] == ["multi-turn-chat", "agent-fleet"]
    # LRU and the optimum come with every cell.
    names = {row["policy"] for row in document["results"]}
    assert names == {"lru", "lru@python", "gdsf", "optimum"}
    assert len(document["results"]) == 2 * 2 * 4
    for row in document["results"]:
        assert 0 <= row["hit_blocks"] <= row["total_blocks"]
        if row["policy"] == "gdsf":
            assert row.keys() >= MEASURED
            assert row["request_us"] > 0
        if row["policy"] == "lru@python":
            lru = next(
                r
                for r in document["results"]
                if (r["policy"], r["trace"], r["capacity"])
                == ("lru", row["trace"], row["capacity"])
            )
            assert row["hit_blocks"] == lru["hit_blocks"]


def test_the_result_file_names_no_folder_of_this_machine(tmp_path):
    trace = tmp_path / "small.jsonl"
    records = [
        {"timestamp": n, "input_length": 1024, "output_length": 5, "hash_ids": [0, n]}
        for n in range(12)
    ]
    trace.write_text("".join(json.dumps(record) + "\n" for record in records))
    json_file = tmp_path / "r.json"
    assert run(f"--trace={trace}", "--capacity=8", "--policies=lru", f"--json={json_file}") == 0
    text = json_file.read_text()
    assert str(tmp_path) not in text
    document = json.loads(text)
    assert document["settings"]["traces"] == ["small.jsonl"]
    assert {row["trace"] for row in document["results"]} == {"small"}


def test_capacities_of_a_trace_default_to_shares_of_its_footprint(tmp_path, capsys):
    trace = tmp_path / "t.jsonl"
    records = [
        {"timestamp": n, "input_length": 512, "output_length": 5, "hash_ids": [n % 50]}
        for n in range(100)
    ]
    trace.write_text("".join(json.dumps(record) + "\n" for record in records))
    json_file = tmp_path / "r.json"
    assert run(f"--trace={trace}", "--policies=lru", f"--json={json_file}") == 0
    rows = json.loads(json_file.read_text())["results"]
    assert sorted({row["capacity"] for row in rows}) == [1, 2, 5]


def test_scale_prints_ratios_and_keeps_the_number_of_leaves(tmp_path, capsys, monkeypatch):
    from eviction import scale

    monkeypatch.setattr(scale, "BUDGET_S", 0.05)
    json_file, plot_file = tmp_path / "s.json", tmp_path / "s.svg"
    code = run(
        "--scale",
        "--leaves=50,200",
        "--policies=lru@python,gdsf",
        f"--json={json_file}",
        f"--plot={plot_file}",
    )
    assert code == cli.EXIT_OK
    assert "/ Rust LRU" in capsys.readouterr().out
    rows = json.loads(json_file.read_text())["results"]
    assert [(r["policy"], r["leaves"]) for r in rows] == [
        (name, leaves) for name in ("lru", "lru@python", "gdsf") for leaves in (50, 200)
    ]
    assert all(row["calls"] >= 5 and row["evict_us"] > 0 for row in rows)
    assert "<svg" in plot_file.read_text()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--policies=lru,nothing"], "unknown policy 'nothing'; known: lru, lfu"),
        (["--policies=lru@c"], "unknown policy 'lru@c'"),
        (["--policies=adaptive@rust"], "adaptive runs on the python core only"),
        (["--policies=gdsf@rust"], "gdsf runs on the python core only"),
        (["--page-size=3", "--capacity=100"], "--capacity 100 is not a multiple of --page-size 3"),
        (["--policies=lru", "--policy-config=slru={}"], "--policy-config names slru"),
        (
            ["--policies=slru", '--policy-config=slru={"window": 3}', "--limit=5"],
            "policy slru: .*window",
        ),
    ],
)
def test_wrong_input_is_one_message_and_exit_2(argv, message, capsys):
    assert run(*argv) == cli.EXIT_USAGE
    error = capsys.readouterr().err
    assert "Traceback" not in error
    import re

    assert re.search(message, error), error


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--capacity=0"], "'0' is not an integer of at least 1"),
        (["--capacity=10,,20"], "empty entry"),
        (["--trace=absent.jsonl"], "no such file: 'absent.jsonl'"),
        (["--json=absent/r.json"], "folder 'absent' of 'absent/r.json' does not exist"),
        (["--plot=r.txt"], r"must end in .png or .svg or .pdf"),
        (["--policy-config=slru"], "must be NAME="),
        (["--policy-config=slru={x"], "slru: '{x' is not JSON"),
        (["--policy-config=slru=[1]"], "slru: '[1]' is not a JSON object"),
        (["--workloads=a,shared-prefixes"], "unknown workload a; known: shared-prefixes"),
        (["--seed=-1"], "not an integer of at least 0"),
    ],
)
def test_wrong_options_are_named(argv, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(*argv)
    assert stopped.value.code == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


def test_a_malformed_trace_is_one_message(tmp_path, capsys):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"timestamp": 0}\n')
    assert run(f"--trace={path}") == cli.EXIT_USAGE
    assert "bad.jsonl, line 1: lacks input_length" in capsys.readouterr().err


def test_groups_name_only_known_policies_without_repeats():
    every = policies.resolve(["all", "upstream", "lru"], {})
    names = [policy.name for policy in every]
    assert len(names) == len(set(names))
    assert set(names) >= {*policies.UPSTREAM, *policies.OURS, *policies.REFERENCE, "optimum"}
    assert {p.core for p in every} == {"rust", "python", None}


def test_configurations_reach_their_policy_only():
    one, other = policies.resolve(["slru", "lru"], {"slru": {"protected_threshold": 5}})
    assert one.config == {"protected_threshold": 5}
    assert other.config == {}


def test_the_quick_run_covers_all_workloads_and_policies():
    options = command.arguments().parse_args([])
    assert options.workloads == list(WORKLOADS)
    assert options.policies is None
    assert command.QUICK_CAPACITIES
