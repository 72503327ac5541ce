"""An engine of vLLM with two workers that generates tokens; then, if told so, one worker dies.

    engine.py FOLDER [kill]

FOLDER gets a tiny random Llama. The last line of the output is JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time

VOCABULARY = 1000


def make_model(folder: str) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    words = {word: i for i, word in enumerate(["<unk>", *(f"w{i}" for i in range(1, VOCABULARY))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.1,  # of a smaller one all logits would be alike
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def kill_a_worker(died: list[float]) -> None:
    """Kill rank 1, in a while."""
    import psutil

    time.sleep(1)
    workers = [
        process
        for process in psutil.Process().children(recursive=True)
        if "Worker_TP1" in " ".join(process.cmdline())
    ]
    died.append(time.monotonic())
    for worker in workers:
        worker.kill()


def main() -> None:
    from vllm import LLM, SamplingParams

    folder = sys.argv[1]
    make_model(folder)
    llm = LLM(
        folder,
        tensor_parallel_size=2,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=4,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=64 << 20,
        seed=0,
        disable_log_stats=True,
    )
    draw = random.Random(1)
    prompts = [
        {"prompt_token_ids": [draw.randrange(3, VOCABULARY) for _ in range(length)]}
        for length in (16, 64, 5)
    ]

    def generate(tokens: int) -> list[list[int]]:
        options = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        made = llm.generate(prompts, options, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in made]

    found: dict[str, object] = {"tokens": generate(24)}
    if "kill" in sys.argv:
        died: list[float] = []
        threading.Thread(target=kill_a_worker, args=(died,), daemon=True).start()
        try:
            while True:
                generate(400)
        except Exception as error:
            found["error"] = type(error).__name__
            found["after"] = time.monotonic() - died[0]
    print(f"\n{json.dumps(found)}", flush=True)
    llm.llm_engine.engine_core.shutdown()  # its processes would outlive this one


if __name__ == "__main__":
    main()
    os._exit(0)
