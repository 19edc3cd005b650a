# lm-evaluation-harness through our class gives what dsmoe eval --pairs gives.
import json

import pytest
from conftest import command

pytest.importorskip("lm_eval")

PAIRS = [("the 7 little", " red foxes"), ("the 3 little red", " rivers"), ("over 4 hills and", " 5 rivers"), ("a ", "b")]
TASK = """
task: dsmoe_pairs
dataset_path: json
dataset_kwargs:
  data_files:
    test: FILE
test_split: test
output_type: loglikelihood
doc_to_text: "{{context}}"
doc_to_target: "{{continuation}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


def test_log_likelihoods_equal_the_command_lines(folder, tmp_path, monkeypatch):
    import lm_eval
    from lm_eval.tasks import TaskManager

    import dsmoe.lm_eval  # noqa: F401

    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({"context": a, "continuation": b}) + "\n" for a, b in PAIRS))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/pairs.yaml").write_text(TASK.replace("FILE", str(file)))
    result = lm_eval.simple_evaluate(
        model="dsmoe", model_args=f"path={folder}", tasks=["dsmoe_pairs"], log_samples=True, bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False))
    samples = sorted(result["samples"]["dsmoe_pairs"], key=lambda sample: sample["doc_id"])
    ours = [(float(s["filtered_resps"][0][0]), bool(s["filtered_resps"][0][1])) for s in samples]
    lines = command("eval", folder, "--pairs", file, "--json", "--quiet").splitlines()
    theirs = [(line["loglikelihood"], line["greedy"]) for line in map(json.loads, lines)]
    assert ours == theirs and len(ours) == len(PAIRS)


def test_rolling_and_generation(folder):
    from lm_eval.api.instance import Instance

    import dsmoe
    import dsmoe.lm_eval

    lm = dsmoe.lm_eval.DsmoeLM(str(folder))
    text = "the 7 little red foxes ran over 10 hills " * 8  # longer than the context
    (rolling,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
    assert rolling == -dsmoe.load(folder).evaluate(text)["nats"] < 0
    wishes = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    (answer,) = lm.generate_until([Instance("generate_until", {}, ("the 7", wishes), 0)])
    assert answer == dsmoe.load(folder).generate("the 7", max_tokens=8, temperature=0, stop="\n")
