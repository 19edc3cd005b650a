"""The openai SDK, LangChain and lm-evaluation-harness against a running server; see run.sh."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import openai
from langchain_openai import ChatOpenAI
from recorder import Recorder

HERE = pathlib.Path(__file__).resolve().parent
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The cat sat on"}]


def check_openai(url, key):
    """Plain and streamed, with log-probabilities, errors as the SDK's own types."""
    client = openai.OpenAI(base_url=url, api_key=key)
    model = client.models.list().data[0].id
    plain = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=12, temperature=0, seed=1, logprobs=True, top_logprobs=2
    )
    assert plain.choices[0].finish_reason in ("stop", "length"), plain
    assert len(plain.choices[0].logprobs.content) == plain.usage.completion_tokens
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=12, temperature=0, seed=1, stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == plain.choices[0].message.content, (text, plain)
    assert usage.total_tokens == plain.usage.total_tokens
    completion = client.completions.create(
        model=model, prompt=["The cat", "The dog"], max_tokens=8, n=2, temperature=0.8, seed=3, stop=["."],
        extra_body={"return_routed_experts": True},
    )
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert len(completion.choices[0].routed_experts[0]) == 2
    joined = "".join(
        chunk.choices[0].text for chunk in client.completions.create(
            model=model, prompt="The cat", max_tokens=8, temperature=0.8, seed=3, stream=True)
    )
    assert joined == client.completions.create(
        model=model, prompt="The cat", max_tokens=8, temperature=0.8, seed=3).choices[0].text
    for bad, error in [
        ({"temperature": 9}, openai.BadRequestError),
        ({"model": "other"}, openai.NotFoundError),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError),
    ]:
        try:
            client.chat.completions.create(**{"model": model, "messages": MESSAGES, **bad})
        except error:
            continue
        raise AssertionError(f"{bad} was not refused with {error}")
    try:
        openai.OpenAI(base_url=url, api_key="wrong").models.list()
        raise AssertionError("a wrong key was accepted")
    except openai.AuthenticationError:
        pass
    print("openai SDK: ok")
    return model


def check_langchain(url, key, model):
    """invoke() and stream() of ChatOpenAI."""
    chat = ChatOpenAI(base_url=url, api_key=key, model=model, temperature=0, max_tokens=12, seed=1)
    answer = chat.invoke("The dog sat on")
    assert isinstance(answer.content, str)
    assert answer.usage_metadata["output_tokens"] <= 12
    streamed = "".join(chunk.content for chunk in chat.stream("The dog sat on"))
    assert streamed == answer.content, (streamed, answer.content)
    print("LangChain: ok")


def check_lm_eval(url, key, model, folder, program, work):
    """loglikelihood of local-completions equals dsmoe eval --pairs."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    os.environ["OPENAI_API_KEY"] = key
    tasks = work / "tasks"
    tasks.mkdir(exist_ok=True)
    (tasks / "pairs.yaml").write_text((HERE / "pairs.yaml").read_text().replace("PAIRS", str(HERE / "pairs.jsonl")))
    result = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=f"model={model},base_url={url}/completions,tokenizer={folder},tokenizer_backend=huggingface,"
        "num_concurrent=2,max_length=256,batch_size=2",
        tasks=["dsmoe_pairs"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = sorted(result["samples"]["dsmoe_pairs"], key=lambda sample: sample["doc_id"])
    theirs = [(float(s["filtered_resps"][0][0]), bool(s["filtered_resps"][0][1])) for s in samples]
    lines = subprocess.run(
        [program, "eval", folder, "--pairs", str(HERE / "pairs.jsonl"), "--bos", "no", "--json", "--quiet"],
        check=True, capture_output=True, text=True,
    ).stdout
    ours = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    assert len(ours) == len(theirs) > 0, lines
    for mine, (log_likelihood, greedy) in zip(ours, theirs):
        assert abs(mine["loglikelihood"] - log_likelihood) < 1e-5, (mine, log_likelihood)
        assert mine["greedy"] == greedy, (mine, greedy)
    print(f"lm-eval: {len(ours)} log-likelihoods equal dsmoe eval --pairs")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--record", help="write the requests to this file")
    options = parser.parse_args()
    recorder = Recorder(options.port)
    url = f"http://127.0.0.1:{recorder.port}/v1"
    model = check_openai(url, options.key)
    check_langchain(url, options.key, model)
    check_lm_eval(url, options.key, model, options.model, options.program, options.work)
    if options.record:
        # What needs a key of its own is left out: the replay runs without keys.
        recorder.lines = [line for line in recorder.lines if line["status"] != 401]
        recorder.write(options.record)
        print(f"{len(recorder.lines)} requests recorded")


if __name__ == "__main__":
    sys.exit(main())
