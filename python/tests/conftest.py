# A small model with a tokenizer and a chat template, made by the package's own command line.
import json
import os
import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

CONFIG = json.loads((pathlib.Path(__file__).parent / "tiny.json").read_text())


def command(*words, **options):
    """The command line that came with the package, or the program that DSMOE_PROGRAM names; its standard output."""
    program = [os.environ["DSMOE_PROGRAM"]] if "DSMOE_PROGRAM" in os.environ else [sys.executable, "-m", "dsmoe"]
    done = subprocess.run([*program, *map(str, words)], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"dsmoe {words}: exit {done.returncode}\n{done.stderr}"
    return done.stdout


def lines(count):
    return [f"the {i} little red foxes ran over {i * 7 % 13} hills and {i * 5 % 11} rivers" for i in range(count)]


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("dsmoe")


@pytest.fixture(scope="session")
def config(work):
    path = work / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="session")
def corpus(work):
    path = work / "corpus.txt"
    path.write_text("<|endoftext|>\n".join(lines(80)))
    return path


@pytest.fixture(scope="session")
def folder(work, config, corpus):
    path = work / "model"
    command("demo", "--random", "--config", config, "--seed", 7, "-o", path, "--quiet")
    command("tokenizer", "train", corpus, "--vocab-size", 300, "-o", path)
    template = REPOSITORY / "src/text/testdata/chat/templates/deepseek.jinja"
    (path / "chat_template.jinja").write_text(template.read_text())
    return path


@pytest.fixture(scope="session")
def model(folder):
    import dsmoe

    return dsmoe.load(folder)


@pytest.fixture(scope="session")
def finished_run(work, config, corpus):
    path = work / "finished"
    command("train", "--config", config, "--data", corpus, "--out", path, "--steps", 20, "--batch", 4, "--seq", 32,
            "--save-every", 10, "--quiet")
    return path
