"""Options: defaults, then a YAML file, then the command line; what is wrong is named, with what was meant."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import Train
from torchrun_trainer import options
from torchrun_trainer.config import Config
from torchrun_trainer.errors import TrainerError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a YAML file of options is."""
    return tmp_path / "options.yaml"


def refusal(file: Path, text: str) -> str:
    """Return the sentence that refuses a YAML file."""
    file.write_text(text)
    with pytest.raises(TrainerError) as raised:
        options.parse(["--config", str(file)])
    sentence = str(raised.value)
    assert sentence.startswith(f"--config {file} ")
    assert "\n" not in sentence
    return sentence


def test_the_file_overrides_defaults_and_the_command_line_the_file(file: Path):
    file.write_text("steps: 7\nlr: 3e-4\nbatch_size: 8\ntensorboard: false\n")
    assert options.parse([]) == Config()
    assert options.parse(["--config", str(file), "--batch-size", "9"]) == Config(
        steps=7, lr=3e-4, batch_size=9, tensorboard=False
    )


def test_a_value_of_the_file_can_be_set_back_to_the_default(file: Path):
    file.write_text("steps: 7\n")
    assert options.parse(["--config", str(file), "--steps", str(Config.steps)]).steps == Config.steps


def test_a_number_may_be_written_as_yaml_reads_it_or_as_text(file: Path):
    for written in ("3e-4", "0.0003", "3.0e-4", "'3e-4'"):
        file.write_text(f"lr: {written}\n")
        assert options.parse(["--config", str(file)]).lr == 3e-4
    file.write_text("lr: 1\n")
    assert options.parse(["--config", str(file)]).lr == 1.0


def test_an_empty_file_gives_the_defaults(file: Path):
    file.write_text("# nothing\n")
    assert options.parse(["--config", str(file)]) == Config()


def test_an_unknown_name_is_refused_with_the_nearest(file: Path):
    assert "batchsize, which is unknown: did you mean batch_size?" in refusal(file, "batchsize: 3\n")
    assert "the options are task, data, " in refusal(file, "qqqq: 3\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: many", "gives steps the value 'many': give a whole number."),
        ("steps: 1.5", "gives steps the value 1.5: give a whole number."),
        ("steps: true", "gives steps the value True: give a whole number."),
        ("lr: fast", "gives lr the value 'fast': give a number."),
        ("lr: [1]", "gives lr the value [1]: give a number."),
        ("lr: true", "gives lr the value True: give a number."),
        ("compile: 1", "gives compile the value 1: give true or false."),
        ("data: 3", "gives data the value 3: give text."),
        ("task: audio", "gives task the value 'audio': give one of lm, image."),
        ("task: [lm]", "gives task the value ['lm']: give one of lm, image."),
        ("- steps", "holds no options: give lines of name: value."),
        ("steps: 1\nlr: 1\nsteps: 2", "gives steps twice: keep one of them."),
        ("steps: [", "is no valid YAML at line 1: mend it."),
        ("a: b: c", "is no valid YAML at line 1: mend it."),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_right_one(file: Path, text: str, said: str):
    assert said in refusal(file, text)


def test_a_file_that_is_not_there_or_no_text_is_named(file: Path, tmp_path: Path):
    for path in (tmp_path / "nothing.yaml", tmp_path):
        with pytest.raises(TrainerError, match=f"--config {path} cannot be read: "):
            options.parse(["--config", str(path)])
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TrainerError, match="is no valid YAML"):
        options.parse(["--config", str(file)])


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--stesp 3", "Unrecognized options: --stesp, 3: did you mean --steps? --help lists all options."),
        ("--step 3", "Unrecognized options: --step, 3: did you mean --steps? --help lists all options."),
        ("--no-tensorbord", "Unrecognized options: --no-tensorbord: did you mean --tensorboard?"),
        ("--batchsize 3", "Unrecognized options: --batchsize, 3: did you mean --batch-size? --help lists all options."),
        ("--task audio", "invalid choice 'audio' for argument '--task'. Expected one of ('lm', 'image')."),
        ("--steps many", "Error parsing --steps: invalid literal for int() with base 10: 'many'"),
        ("--steps", "--steps"),
    ],
)
def test_an_error_on_the_command_line_is_one_sentence_with_what_was_meant(
    typed: str, said: str, encoding: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))  # it decides how boxes are drawn
    with pytest.raises(TrainerError) as raised:
        options.parse(typed.split())
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "---" not in str(raised.value)


def test_the_config_of_a_run_is_saved_and_can_be_given_again(train: Train, tmp_path: Path):
    run = train(1, "--steps", "2", "--lr", "3e-4")
    saved = run.folder / "config.yaml"
    values = yaml.safe_load(saved.read_text())
    assert (values["steps"], values["lr"], values["width"]) == (2, 3e-4, 16)
    assert options.parse(["--config", str(saved)]) == Config(**values)
    again = train(1, "--config", str(saved), "--steps", "2", folder=tmp_path / "again")
    assert (tmp_path / "again/config.yaml").read_text() == saved.read_text()
    assert again.losses == run.losses


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({name: 0}, f"--{name.replace('_', '-')} is 0: give a whole number from 1.") for name in (
            "steps", "batch_size", "block_size", "layers", "heads", "width", "checkpoint_every", "keep", "log_every",
            "image_size", "powersgd_rank",
        )),
        *(({name: -1}, f"--{name.replace('_', '-')} is -1: give a number from 0.") for name in (
            "seed", "warmup", "weight_decay", "micro_batch", "keep_every", "rebalance_above", "step_timeout",
        )),
        *(({name: 0.0}, f"--{name.replace('_', '-')} is 0.0: give a number above 0.") for name in ("lr", "grad_clip")),
        *(({name: float("inf")}, f"--{name.replace('_', '-')} is inf: give a number ") for name in (
            "lr", "grad_clip", "weight_decay", "rebalance_above",
        )),
        ({"lr": float("nan")}, "--lr is nan: give a number above 0."),
        ({"weight_decay": float("nan")}, "--weight-decay is nan: "),
        ({"model": "net"}, "--model is net: give package.module:function"),
        ({"seed": 2**64}, "--seed is 18446744073709551616: the most is 9223372036854775807."),
        ({"step_timeout": 10**12}, "--step-timeout is 1000000000000: the most is 604800."),
        ({"image_size": 100000}, "--image-size is 100000: the most is 4096."),
        ({"batch_size": 10**12}, "--batch-size is 1000000000000: the most is 16777216."),
        ({"model": "net.py:"}, "--model is net.py:: give package.module:function"),
        ({"model": "a/net:build"}, "--model is a/net:build: give package.module:function"),
        ({"model": "net:"}, "--model is net:: give package.module:function"),
        ({"dataset": ":net"}, "--dataset is :net: give package.module:function"),
        ({"heads": 3}, "--width 128 is no multiple of --heads 3: change one of them."),
        ({"tokenizer": "bpe", "vocab_size": 100}, "--vocab-size is 100: give one from 257 to 65536."),
        ({"tokenizer": "bpe", "vocab_size": 70000}, "--vocab-size is 70000: give one from 257 to 65536."),
        ({"batch_size": 2}, "--batch-size 2 is below the world size 3: every rank needs a sample."),
    ],
)  # fmt: skip
def test_a_value_that_cannot_work_is_refused_in_one_sentence(changes: dict[str, float], said: str):
    with pytest.raises(TrainerError) as raised:
        replace(Config(), **changes).check(world_size=3)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_what_can_work_is_not_refused():
    for changes in ({}, {"warmup": 0}, {"weight_decay": 0.0}, {"heads": 3, "model": "net:build"}, {"batch_size": 3}):
        replace(Config(), **changes).check(world_size=3)


def test_a_checkpoint_fits_a_config_by_what_its_weights_depend_on():
    config = Config()
    assert replace(config, steps=7, lr=1.0, batch_size=8, seed=3).model_hash() == config.model_hash()
    for changes in ({"width": 64}, {"task": "image"}, {"layers": 2}, {"model": "net:build"}, {"block_size": 8}):
        assert replace(config, **changes).model_hash() != config.model_hash()
