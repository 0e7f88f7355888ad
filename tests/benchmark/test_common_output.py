# SPDX-License-Identifier: Apache-2.0
"""Helpers that all benchmarks share: options, tables, result files, machine facts."""

from __future__ import annotations

import argparse
import json
import math

import pytest

from common import cli, machine, plot, progress, result, stats, table


@pytest.mark.parametrize(
    ("text", "value"), [("1", [1]), ("2k,1K", [1000, 2000]), ("3m", [3_000_000]), ("5,5", [5])]
)
def test_lists_of_sizes(text, value):
    assert cli.positive_list(text) == value


@pytest.mark.parametrize("text", ["", "0", "-3", "1.5", "k", "1,", "²"])
def test_lists_of_sizes_refuse_other_text(text):
    with pytest.raises(argparse.ArgumentTypeError):
        cli.positive_list(text)


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (cli.share, {"0": 0.0, "0.5": 0.5, "1": 1.0}, ["-0.1", "1.1", "x", "nan", ""]),
        (cli.factor, {"0.5": 0.5, "2": 2.0}, ["0", "-1", "inf", "nan", "x"]),
        (cli.json_object, {'{"a": 1}': {"a": 1}}, ["[1]", "{", "", "1"]),
        (cli.named_json_object, {'a={"b": 1}': ("a", {"b": 1})}, ["a", "={}", "a=1", "a={"]),
        (cli.words_of("fruit", ["fig", "pear"]), {"pear, fig": ["pear", "fig"]}, ["fig,", "kiwi"]),
    ],
)
def test_option_values_are_read_or_refused(read, good, bad):
    assert {text: read(text) for text in good} == good
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


def test_main_turns_errors_into_exit_codes(capsys):
    def fail(options):
        raise cli.BenchError("no such thing; allowed: a, b")

    def interrupt(options):
        raise KeyboardInterrupt

    parser = cli.parser("test")
    assert cli.main(lambda options: None, parser, []) == 0
    assert cli.main(lambda options: cli.EXIT_FAILED, parser, []) == 1
    assert cli.main(fail, parser, []) == 2
    assert "error: no such thing; allowed: a, b" in capsys.readouterr().err
    assert cli.main(interrupt, parser, []) == 130


def test_help_shows_the_defaults_that_there_are(capsys):
    parser = cli.parser("test")
    cli.add_output_options(parser)
    parser.add_argument("--sizes", type=cli.positive_list, default=[1, 20], help="sizes")
    text = " ".join(parser.format_help().split())
    assert "seed of random workloads (default: 0)" in text
    assert "sizes (default: 1,20)" in text
    assert "None" not in text


def test_a_result_file_is_read_back_and_nan_becomes_null(tmp_path):
    path = tmp_path / "r.json"
    rows = [{"a": math.nan, "b": [1, (2, math.inf)]}]
    result.write(path, result.document("name", {"k": None}, rows, command="python x.py"))
    document = result.read(path)
    assert set(document) == set(result.KEYS)
    assert document["results"] == [{"a": None, "b": [1, [2, None]]}]
    assert document["command"] == "python x.py"
    assert document["machine"]["logical_cpus"] >= 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a benchmark result of schema 1"),
        ('{"schema": 2}', "is not a benchmark result of schema 1"),
        ('{"schema": 1}', "lacks benchmark, command"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(cli.BenchError, match=message):
        result.read(path)
    with pytest.raises(cli.BenchError, match=r"cannot read none\.json"):
        result.read(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="not JSON compliant"):
        result.write(path, {"x": math.nan})
    assert path.read_text() == "old"


def test_the_recorded_command_has_no_folder_of_this_machine():
    inside = str(machine.REPO_ROOT / "benchmark" / "x.py")
    words = [inside, "--trace=/data/private/t.jsonl", "--json", "/home/u/r.json", "a b"]
    command = machine.command_line(words)
    assert command == "python benchmark/x.py --trace=t.jsonl --json r.json 'a b'"


def test_machine_facts_are_plain_and_complete():
    facts = machine.machine_facts()
    json.dumps(facts)
    assert {"cpu", "logical_cpus", "python", "versions", "git"} <= set(facts)
    assert {"sglang", "torch", "numpy"} <= set(facts["versions"])


def test_tables_leave_out_empty_columns_and_mark_missing_cells():
    columns = (
        table.Column("name", "name", text=True),
        table.Column("hits", "hits", table.percent),
        table.Column("size", "size", table.byte_size),
        table.Column("never", "never"),
    )
    rows = [{"name": "a", "hits": 0.125, "size": 1536}, {"name": "b", "hits": None, "size": 10}]
    assert table.markdown(columns, rows).splitlines() == [
        "| name | hits | size |",
        "|---|---:|---:|",
        "| a | 12.5 % | 1.5 KiB |",
        "| b | - | 10 B |",
    ]


def test_markdown_is_appended_with_the_command_and_the_machine(tmp_path):
    path = tmp_path / "r.md"
    path.write_text("# Results\n")
    columns = (table.Column("name", "name", text=True),)
    result.append_markdown(path, [("one", columns, [{"name": "a"}])])
    text = path.read_text()
    assert text.startswith("# Results\n`python ")
    assert "logical CPUs" in text
    assert "**one**\n\n| name |\n|---|\n| a |\n" in text
    with pytest.raises(cli.BenchError, match=r"cannot write r\.md"):
        result.append_markdown(tmp_path / "none" / "r.md", [])


def test_ratios_are_readable_at_every_size():
    assert [table.ratio(v) for v in (0.1234, 9.99, 1234.5)] == ["0.12x", "9.99x", "1,234x"]


def test_percentiles_interpolate():
    values = [4.0, 1.0, 3.0, 2.0]
    assert stats.percentile(values, 0) == 1
    assert stats.percentile(values, 50) == 2.5
    assert stats.percentile(values, 100) == 4
    assert math.isnan(stats.percentile([], 50))
    with pytest.raises(ValueError, match="percentile"):
        stats.percentile(values, 101)


def test_the_clock_counts_this_threads_work():
    began = stats.cpu_clock_ns()
    sum(range(200_000))
    assert stats.cpu_clock_ns() > began


def test_progress_without_a_terminal_is_one_line_a_step(capsys, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(progress, "_console", Console(stderr=True, force_terminal=False))
    with progress.steps(2) as bar:
        for name in ("first", "second"):
            bar.start(name)
            bar.finish()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["[1/2]", "[2/2]"]
    assert lines[1].endswith("second")


def test_plots_are_saved_and_styles_differ(tmp_path):
    with plot.figure(tmp_path / "p.png") as (_, axes):
        axes[0][0].plot([1, 2], [3, 4], **plot.style(0))
    assert (tmp_path / "p.png").stat().st_size > 1000
    styles = [(s["color"], s["marker"]) for s in map(plot.style, range(20))]
    assert len(set(styles)) == 20
    with pytest.raises(cli.BenchError, match=r"cannot write p\.png"):
        with plot.figure(tmp_path / "none" / "p.png"):
            pass


def test_interval_of_paired_ratios():
    base = [10.0, 20.0, 40.0]
    middle, low, high = stats.ratio_interval([value * 0.9 for value in base], base)
    assert middle == pytest.approx(0.9) and low == pytest.approx(high)
    middle, low, high = stats.ratio_interval([10.0, 22.0], [10.0, 20.0])
    assert middle == pytest.approx(math.sqrt(1.1))
    # Student's t with one degree of freedom: 12.706 standard errors.
    assert math.log(high / middle) == pytest.approx(12.706 * math.log(1.1) / 2, rel=1e-4)
    assert math.isnan(stats.ratio_interval([1.0], [2.0])[1])


def test_interval_of_a_median():
    low, high = stats.median_interval([0.9, 1.0, 1.1] * 9, seed=1)
    assert 0.9 <= low <= 1.0 <= high <= 1.1
    assert stats.median_interval([1.0], seed=1) == (1.0, 1.0)


def test_interval_of_grouped_values_is_as_wide_as_the_groups_differ():
    groups = [[0.9] * 50, [1.0] * 50, [1.1] * 50]
    low, high = stats.grouped_median_interval(groups, seed=1)
    assert (low, high) == (0.9, 1.1)
    values = [value for group in groups for value in group]
    inner_low, inner_high = stats.median_interval(values, seed=1)
    assert inner_low == inner_high == 1.0
