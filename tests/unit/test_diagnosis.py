"""What logs of failures mean: each rule is tried on a log of such a failure, and the first cause is found in time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis import events, finding, folder, rules
from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis.events import Source

LOGS = Path(__file__).parent / "diagnosis/logs"
RULES = rules.load()
NOW = 1796119200.0  # 2026-12-01 10:00 UTC


def read_log(path: Path) -> tuple[list[str], list[Source]]:
    """Return (what is expected: kind, host, rank; the logs) of a file of logs."""
    first, *sections = re.split(r"^== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sources = []
    for section in sections:
        title, text = section.split("\n", 1)
        host, kind, *rank = title.split()
        sources.append(Source(host, kind, text, title, int(rank[0]) if rank else None))
    return first.split()[1:], sources


def diagnose(sources: Sequence[Source]) -> finding.Finding:
    return finding.find(events.lines_of(sources, NOW), RULES)


def test_there_are_many_rules_and_each_has_a_log():
    assert len(RULES) >= 40
    assert {path.stem for path in LOGS.glob("*.log")} == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_finds_its_failure_on_the_right_host(rule: rules.Rule):
    (kind, host, rank), sources = read_log(LOGS / f"{rule.name}.log")
    found = diagnose(sources)
    told = (found.kind, found.host, "-" if found.rank is None else str(found.rank), found.rule)
    assert told == (kind, host, rank, rule.name)
    assert "{" not in found.cause + found.cure
    assert kind == ("waiting" if rule.strength == "consequence" else "known")
    assert found.evidence in events.lines_of(sources, NOW)


def test_the_first_in_time_is_the_cause_whatever_the_order_of_hosts():
    late = Source("a", "worker", "2026-12-01T10:00:09Z ValueError: late")
    early = Source("b", "worker", "2026-12-01T10:00:03Z RuntimeError: CUDA out of memory.")
    for sources in ([late, early], [early, late]):
        found = diagnose(sources)
        assert (found.host, found.rule) == ("b", "cuda-out-of-memory")
        assert [(later.line.host, later.rule.name) for later in found.timeline] == [("a", "exception")]


def test_what_an_agent_of_ours_passes_on_is_of_its_worker():
    text = "2026-12-01T10:00:09Z node2:3: [rank3]: ValueError: odd\n2026-12-01T10:00:10Z another:4: ValueError: no\n"
    (first, second) = events.lines_of([Source("node2", "agent", text)], NOW)
    assert (first.kind, first.rank, first.text, first.time) == ("worker", 3, "ValueError: odd", NOW + 9)
    assert (second.kind, second.rank) == ("agent", None)


def test_a_failure_that_no_rule_knows_is_shown_and_not_guessed():
    text = "all well\nsomething odd: fatal condition 17 in frobnicator\nlast words\n"
    found = diagnose([Source("node1", "worker", text, "one"), Source("node2", "worker", "all well\n", "two")])
    assert (found.kind, found.host, found.rule, found.cure) == ("unknown", "node1", "", "")
    shown = "\n".join(finding.display(found))
    assert "no rule knows this failure" in shown
    assert "fatal condition 17" in shown
    assert "last words" in shown


def test_where_nothing_failed_nothing_is_found():
    found = diagnose([Source("node1", "worker", "step 1\nstep 2\n")])
    assert found.kind == "nothing"
    assert finding.display(found) == ["No failure found: no line of 2, of 1 hosts, speaks of an error."]


def test_a_rank_that_is_in_no_log_is_known_from_the_plan():
    text = "[rank0]: RuntimeError: [pair.cc:538] Connection closed by peer [10.0.0.12]:1"
    lines = events.lines_of([Source("node1", "worker", text)], NOW)
    found = finding.find(lines, RULES, {0: "node1", 1: "node2"})
    assert (found.host, found.rank) == ("node2", 1)
    assert "rank 0 waited for rank 1 on node2" in found.cause


@pytest.mark.parametrize(
    ("text", "offset", "seconds"),
    [
        ("2026-12-01T10:00:00Z x", 3600, 0.0),
        ("2026-12-01 11:00:00,250 x", 3600, 0.25),
        ("2026-12-01T12:00:00.5+02:00 x", 0, 0.5),
        ("[rank3]:[E1201 10:00:01.118231907 ProcessGroupNCCL.cpp:685] x", 0, 1.118231907),
        ("W1201 10:00:02.500000 4112 torch/run.py:1] x", 0, 2.5),
        ("Dec  1 10:00:03 gpu kernel: x", 0, 3.0),
        ("[Tue Dec  1 10:00:04 2026] x", 0, 4.0),
        ("E1399 10:00:00.000000 no month", 0, None),
        ("step 3 of 10", 0, None),
    ],
)
def test_times_are_read_as_programs_write_them(text: str, offset: float, seconds: float | None):
    found = events.time_of(text, 2026, offset)
    assert found == (None if seconds is None else pytest.approx(NOW + seconds, abs=1e-3))


def test_a_line_without_a_time_is_of_the_one_before_or_of_the_end():
    text = "no time yet\n2026-12-01T10:00:05Z one\ntwo\n"
    lines = events.lines_of([Source("a", "worker", text, until=NOW + 9), Source("b", "worker", "three")], NOW)
    assert [(line.text.split()[-1], line.time) for line in lines] == [
        ("one", NOW + 5), ("two", NOW + 5), ("yet", NOW + 9), ("three", None),
    ]  # fmt: skip


def test_a_syslog_tells_the_kernel_from_the_rest():
    text = "Dec  1 10:00:03 gpu kernel: NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n"
    assert diagnose([Source("gpu", "worker", text)]).rule == "gpu-off-the-bus"


def put(path: Path, text: str, time: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time, time))


def test_a_folder_of_a_job_that_somebody_else_started(tmp_path: Path):
    put(tmp_path / "gpu1/rank0.log", "RuntimeError: Connection closed by peer [10.0.0.2]:1\n", NOW + 9)
    put(tmp_path / "gpu2/rank1.log", "Traceback\nFileNotFoundError: [Errno 2] No such file or directory: '/d'\n", NOW)
    put(tmp_path / "gpu2/dmesg.txt", "[Tue Dec  1 09:00:00 2026] eth0: link becomes ready\n", NOW)
    (tmp_path / "gpu2/weights.pt").write_bytes(b"\0" * 100)
    (tmp_path / "gpu2/picture").write_bytes(b"\0error" * 100)
    sources, ranks = folder.read(tmp_path)
    assert ranks == {}
    assert {(source.host, source.kind, source.rank) for source in sources} == {
        ("gpu1", "worker", 0), ("gpu2", "worker", 1), ("gpu2", "kernel", None),
    }  # fmt: skip
    found = diagnose(sources)
    assert (found.host, found.rank, found.rule) == ("gpu2", 1, "missing-file")


def test_flat_files_are_named_by_host(tmp_path: Path):
    put(tmp_path / "gpu7.log", "MemoryError\n", NOW)
    assert diagnose(folder.read(tmp_path)[0]).host == "gpu7"


def test_a_run_folder_of_ours(tmp_path: Path):
    put(
        tmp_path / "job.yml",
        json.dumps({"nodes": [{"name": "n1", "ranks": [0, 1]}, {"name": "n2", "ranks": [2, 2]}]}),
        0,
    )
    failure = {"rank": 2, "how": "exited with 3", "message": "", "time": NOW + 1, "traceback": []}
    put(tmp_path / "nodes/n2.json", json.dumps({"failures": [failure]}), NOW + 5)
    put(tmp_path / "logs/n1/attempt_0/0/stderr.log", "RuntimeError: Connection closed by peer [n2]:1\n", NOW + 2)
    put(
        tmp_path / "logs/n1/attempt_0/0/error.json",
        json.dumps({"message": {"message": "RuntimeError: Broken pipe"}}),
        1,
    )
    sources, ranks = folder.read(tmp_path)
    assert ranks == {0: "n1", 1: "n1", 2: "n2"}
    found = diagnose(sources)
    assert (found.host, found.rank, found.rule) == ("n2", 2, "early-exit")


def test_a_hang_that_an_agent_kept_is_told(tmp_path: Path):
    put(tmp_path / "job.yml", json.dumps({"nodes": [{"name": "n1", "ranks": [0, 1]}]}), 0)
    hang = {"time": NOW, "silent": "rank 0 after step 120, rank 1 after step 121", "stacks": ["logs/n1/stack-rank-0"]}
    put(tmp_path / "nodes/n1.json", json.dumps({"hangs": [hang]}), NOW)
    found = diagnose(folder.read(tmp_path)[0])
    assert (found.host, found.rule) == ("n1", "hang")
    assert found.cause == "a rank stood still (rank 0 after step 120, rank 1 after step 121)"


def test_of_a_large_log_beginning_and_end_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder, "MOST_BYTES", 40)
    put(tmp_path / "a/x.log", "begin " + "x" * 1000 + " end", NOW)
    text = folder.text_of(tmp_path / "a/x.log")
    assert text is not None
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) == 41


@pytest.mark.parametrize("what", ["nothing", "file", "empty"])
def test_a_folder_without_logs_is_one_sentence(what: str, tmp_path: Path):
    path = tmp_path / what
    if what == "file":
        path.write_text("x")
    elif what == "empty":
        path.mkdir()
    with pytest.raises(folder.FolderError, match=r"give (one|a folder) with the logs of each host"):
        folder.read(path)


GOOD = {"name": "a", "pattern": "x(?P<n>1)", "cause": "c {n}", "cure": "d", "reference": "e"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pattern": "("}, "cannot be used: missing ), unterminated"),
        ({"cure": ""}, "cure is missing"),
        ({"colour": "red"}, "colour is no key of a rule"),
        ({"strength": "strong"}, "strength is one of cause, suspect, consequence"),
        ({"sources": ["moon"]}, "sources are of worker"),
        ({"cause": "c {m}"}, "cause uses m, which pattern does not name"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(changes: dict[str, object], said: str, tmp_path: Path):
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps([GOOD]))
    assert rules.load(path)[0].cause == "c {n}"
    path.write_text(json.dumps([GOOD | changes]))
    with pytest.raises(rules.RuleError) as raised:
        rules.load(path)
    assert str(raised.value).startswith("The rule a of rules.yml cannot be used: ")
    assert said in str(raised.value)


def test_a_rule_that_is_there_twice_is_named(tmp_path: Path):
    (tmp_path / "rules.yml").write_text(json.dumps([GOOD, GOOD]))
    with pytest.raises(rules.RuleError, match="The rule a is there twice"):
        rules.load(tmp_path / "rules.yml")
