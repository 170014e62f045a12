#!/usr/bin/env python
"""The systems beside ours, by their own ways of generating: ids in, ids out, greedily, in float32 with THREADS threads.

    python scripts/bench_peers.py PEER FOLDER N '[ids]'      load, continue the ids by N, write the new ones

A decode is timed from the token that the prompt gives to the last; a batch and a prompt from the call to its end.
"""

import json
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from bench_formats import kept

THREADS = 2


class Peer(ABC):
    """`continued` is all that differs."""

    @abstractmethod
    def continued(self, prompts: list[list[int]], new: int) -> tuple[list[float], list[list[int]]]:
        """[n, T] ids -> when each token came, where that can be seen; [n, new] ids"""

    def decode(self, prompt: list[int], new: int) -> dict:
        at, (ids,) = self.continued([prompt], new + 1)
        return {"seconds": (at[-1] - at[0]) / new, "ids": [ids]}

    def batch(self, prompts: list[list[int]], new: int) -> dict:
        began = time.perf_counter()
        _, ids = self.continued(prompts, new)
        return {"seconds": (time.perf_counter() - began) / (len(prompts) * new), "ids": ids}

    def prefill(self, prompt: list[int]) -> dict:
        began = time.perf_counter()
        self.continued([prompt], 1)
        return {"seconds": (time.perf_counter() - began) / len(prompt)}


class Transformers(Peer):
    """`GPT2LMHeadModel` with torch."""

    def __init__(self, folder: str):
        import torch
        from transformers import GPT2LMHeadModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(THREADS)
        saved = str(kept(folder, "transformers"))
        self.torch, self.model = torch, GPT2LMHeadModel.from_pretrained(saved, dtype=torch.float32).eval()

    def continued(self, prompts, new):
        ids, times = self.torch.tensor(prompts), Times()
        more = dict(streamer=times) if len(prompts) == 1 else {}  # it takes one sequence
        fixed = dict(max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
        with self.torch.inference_mode():
            out = self.model.generate(ids, attention_mask=self.torch.ones_like(ids), **fixed, **more)
        return times.at[1:], out[:, ids.shape[1] :].tolist()  # the first call is with the prompt

    def prefill(self, prompt):
        ids = self.torch.tensor([prompt])
        with self.torch.inference_mode():
            began = time.perf_counter()
            self.model(ids, logits_to_keep=1)
        return {"seconds": (time.perf_counter() - began) / len(prompt)}


class Times:
    """A streamer that notes when tokens come."""

    def __init__(self):
        self.at = []

    def put(self, ids) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None:
        pass


class TransformerLens(Transformers):
    """`run_with_cache` of a bridge over the same model: names as `@resid` has them, kept in memory."""

    def __init__(self, folder: str):
        super().__init__(folder)
        from transformer_lens.model_bridge import TransformerBridge

        self.bridge = TransformerBridge.boot_transformers(str(kept(folder, "transformers")), hf_model=self.model)

    def cached(self, documents: list[list[int]]) -> dict:
        ends = ("hook_embed", "hook_resid_pre", "hook_resid_mid", "hook_resid_post")
        began = time.perf_counter()
        with self.torch.inference_mode():
            for ids in documents:
                _, cache = self.bridge.run_with_cache(
                    self.torch.tensor([ids]), return_type=None, names_filter=lambda name: name.endswith(ends)
                )
                assert len(cache) == 1 + 3 * self.model.config.n_layer, sorted(cache)
        return {"seconds": (time.perf_counter() - began) / sum(map(len, documents))}


class CTranslate2(Peer):
    """`Generator`; ids go in as the pieces of its vocabulary."""

    def __init__(self, folder: str):
        import ctranslate2

        saved = kept(folder, "CTranslate2")
        self.pieces = json.loads((saved / "vocabulary.json").read_text(encoding="utf-8"))
        how = dict(device="cpu", inter_threads=1, intra_threads=THREADS, compute_type="float32")
        self.generator = ctranslate2.Generator(str(saved), **how)

    def continued(self, prompts, new):
        at = []
        found = self.generator.generate_batch(
            [[self.pieces[i] for i in ids] for ids in prompts],
            beam_size=1,
            min_length=new,
            max_length=new,
            include_prompt_in_result=False,
            callback=(lambda step: at.append(time.perf_counter())) if len(prompts) == 1 else None,
        )
        return at, [result.sequences_ids[0] for result in found]


class Llama(Peer):
    """llama.cpp by its C interface: no sampler and no Python wrapper in the way.  Its cache is float32 here too."""

    def __init__(self, folder: str):
        import llama_cpp.llama_cpp as c

        self.c, self.quiet = c, c.llama_log_callback(lambda level, text, more: None)
        c.llama_log_set(self.quiet, None)
        c.llama_backend_init()
        saved = str(kept(folder, "llama.cpp"))
        self.model = c.llama_model_load_from_file(saved.encode(), c.llama_model_default_params())
        self.n_vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        self.n_ctx, self.contexts = c.llama_model_n_ctx_train(self.model), {}

    def _context(self, sequences: int):
        """An empty one for that many sequences."""
        c = self.c
        if sequences not in self.contexts:
            asked = c.llama_context_default_params()
            asked.n_ctx = asked.n_batch = self.n_ctx if sequences == 1 else sequences * min(self.n_ctx, 256)
            asked.n_seq_max, asked.n_threads, asked.n_threads_batch = sequences, THREADS, THREADS
            asked.type_k = asked.type_v = c.GGML_TYPE_F32
            self.contexts[sequences] = c.llama_init_from_model(self.model, asked)
        context = self.contexts[sequences]
        c.llama_memory_clear(c.llama_get_memory(context), True)
        return context

    def _pass(self, context, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Rows of (id, position, sequence, whether its next is wanted) -> the likeliest next ids."""
        import numpy as np

        batch = self.c.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        status = self.c.llama_decode(context, batch)
        assert status == 0, f"llama_decode: {status}"
        wanted = [self.c.llama_get_logits_ith(context, i) for i, row in enumerate(rows) if row[3]]
        ids = [int(np.ctypeslib.as_array(logits, (self.n_vocab,)).argmax()) for logits in wanted]
        self.c.llama_batch_free(batch)
        return ids

    def continued(self, prompts, new):
        length, context = len(prompts[0]), self._context(len(prompts))
        rows = [(i, at, s, at == length - 1) for s, ids in enumerate(prompts) for at, i in enumerate(ids)]
        steps, at = [self._pass(context, rows)], [time.perf_counter()]
        while len(steps) < new:
            rows = [(i, length + len(steps) - 1, s, True) for s, i in enumerate(steps[-1])]
            steps.append(self._pass(context, rows))
            at.append(time.perf_counter())
        return at, [list(ids) for ids in zip(*steps, strict=True)]


PEERS = {"transformers": Transformers, "CTranslate2": CTranslate2, "llama.cpp": Llama}


if __name__ == "__main__":
    peer, folder, new, ids = sys.argv[1:]
    _, (found,) = PEERS[peer](str(Path(folder))).continued([json.loads(ids)], int(new))
    print(json.dumps({"tokens": found}))
