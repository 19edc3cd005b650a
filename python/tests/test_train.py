# Training gives the bytes of the command line, whole, resumed, from texts and from ids; and what a run wrote is read.
import filecmp
import json

import numpy as np
import pytest
from conftest import CONFIG, command, lines

import dsmoe

FLAGS = {"steps": 20, "batch": 4, "seq": 32, "save_every": 10}


def same_checkpoints(ours, theirs, step):
    name = f"step-{step:08}"
    names = sorted(p.name for p in (theirs / name).iterdir())
    assert names == sorted(p.name for p in (ours / name).iterdir())
    _, different, errors = filecmp.cmpfiles(ours / name, theirs / name, names, shallow=False)
    assert not different and not errors, (different, errors)


def test_twenty_steps_equal_the_command_lines(config, corpus, finished_run, tmp_path):
    run = dsmoe.train(config, data=[corpus], out=tmp_path / "run", progress=False, **FLAGS)
    same_checkpoints(tmp_path / "run", finished_run, 20)
    assert [p.name for p in run.checkpoints] == ["step-00000010", "step-00000020"]
    theirs = dsmoe.read_run(finished_run)
    assert (run.metrics["loss"] == theirs.metrics["loss"]).all()
    other = dsmoe.train(config, data=[corpus], out=tmp_path / "other", progress=False, **{**FLAGS, "seed": 2})
    assert (other.metrics["loss"] != theirs.metrics["loss"]).any(), "another seed must show"


def test_steps_evaluation_and_saving_change_no_bit(config, corpus, finished_run, tmp_path):
    with dsmoe.Trainer(config, data=corpus, out=tmp_path / "run", **FLAGS) as trainer:
        assert trainer.total_steps == 20
        first = trainer.step()
        assert first["step"] == 1 and first["load"].shape == (2, 6)
        assert first["load"].sum() == 2 * 2 * first["tokens"]
        assert "validation_loss" in trainer.evaluate()
        assert trainer.save().endswith("step-00000001")
        assert [m["step"] for m in trainer] == list(range(2, 21))
        assert trainer.step() is None and trainer.finished
    same_checkpoints(tmp_path / "run", finished_run, 20)


def test_a_run_that_was_left_goes_on_here_and_at_the_command_line(config, corpus, finished_run, tmp_path):
    for name in ("here", "there"):
        with dsmoe.Trainer(config, data=corpus, out=tmp_path / name, **FLAGS) as trainer:
            for _ in range(13):
                trainer.step()
        record = json.loads((tmp_path / name / "run.json").read_text())
        assert record["sessions"][-1]["end"].startswith("stopped"), record["sessions"][-1]
    dsmoe.train(out=tmp_path / "here", resume=True, progress=False)
    command("train", "--resume", tmp_path / "there", "--quiet")
    for name in ("here", "there"):
        same_checkpoints(tmp_path / name, finished_run, 20)


def test_texts_are_a_file_of_texts(config, finished_run, tmp_path):
    texts = lines(80)
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    dsmoe.train(config, data=file, out=tmp_path / "file", progress=False, **FLAGS)
    dsmoe.train(CONFIG, data=(text for text in texts), out=tmp_path / "texts", progress=False, **FLAGS)
    same_checkpoints(tmp_path / "texts", tmp_path / "file", 20)


def test_ids_train_the_same_model_however_often_they_are_interrupted(config, tmp_path):
    rng = np.random.default_rng(1)
    documents = [rng.integers(2, 300, size=n) for n in rng.integers(5, 60, size=50)]
    whole = dsmoe.train(config, data=documents, out=tmp_path / "whole", progress=False, **FLAGS)
    assert len(whole.lines) == 20
    with dsmoe.Trainer(config, data=documents, out=tmp_path / "parts", **FLAGS) as trainer:
        for _ in range(11):
            trainer.step()
    dsmoe.train(config, data=documents, out=tmp_path / "parts", resume=True, progress=False)
    same_checkpoints(tmp_path / "parts", tmp_path / "whole", 20)
    with pytest.raises(dsmoe.InputError):  # other data is another run
        dsmoe.train(config, data=documents[1:], out=tmp_path / "parts", resume=True, steps=30, progress=False)
    with pytest.raises(dsmoe.InputError, match="document 1, token 0 has id 300"):
        dsmoe.train(config, data=[[5, 6, 7], [300]], out=tmp_path / "bad", progress=False, **FLAGS)
    assert not (tmp_path / "bad").exists()


def test_wrong_options_are_refused_and_leave_nothing(config, corpus, tmp_path):
    with pytest.raises(dsmoe.UsageError, match="--stepps"):
        dsmoe.train(config, data=corpus, out=tmp_path / "run", stepps=5)
    with pytest.raises(dsmoe.UsageError, match="does not divide"):
        dsmoe.train(config, data=corpus, out=tmp_path / "run", batch=4, micro_batch=3, seq=32)
    with pytest.raises(dsmoe.UsageError, match="--data"):
        dsmoe.train(config, out=tmp_path / "run")
    with pytest.raises(dsmoe.UsageError, match="--stepps"):
        dsmoe.train(CONFIG, data=["a text", "and another"], out=tmp_path / "run", stepps=5)
    assert not (tmp_path / "run").exists()


def test_runs_are_read(finished_run):
    run = dsmoe.read_run(finished_run)
    assert run.metrics["step"].tolist() == list(range(1, 21))
    assert np.isnan(run.metrics["validation_loss"]).any() and not np.isnan(run.metrics["validation_loss"]).all()
    assert all(load.shape == (2, 6) for load in run.loads.values()) and run.loads
    assert run.record["program"] == "train"
    assert run.load().generate("the", max_tokens=3, seed=1, ignore_eos=True).tokens
    with pytest.raises(dsmoe.IoError, match="no such folder"):
        dsmoe.read_run(finished_run / "nothing")
