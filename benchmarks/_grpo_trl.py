"""`grpo.py`: steps of TRL's GRPOTrainer, with transformers' own generation."""

import itertools
import json
import tempfile
import time

import torch
from _grpo_load import SIZES, arguments, prompts, rewards
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

asked = arguments()
torch.set_num_threads(asked["threads"])
torch.manual_seed(0)
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
words = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {one: 3 + i for i, one in enumerate(alphabet)}
raw = Tokenizer(models.BPE(vocab=words, merges=[]))
raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
raw.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw,
    pad_token="<pad>",
    bos_token="<bos>",
    eos_token="<eos>",
    padding_side="left",
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=SIZES["vocab_size"],
        hidden_size=SIZES["dim"],
        intermediate_size=SIZES["hidden_dim"],
        num_hidden_layers=SIZES["num_layers"],
        num_attention_heads=SIZES["num_heads"],
        num_key_value_heads=SIZES["num_kv_heads"],
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
)


class Clock(TrainerCallback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        self.ends.append(time.perf_counter())


clock = Clock()
num_steps = asked["warm_up"] + asked["steps"]
with tempfile.TemporaryDirectory() as folder:
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: rewards(completions),
        train_dataset=Dataset.from_dict(
            {"prompt": prompts(asked["rows"] // asked["group"] * num_steps, asked["prompt"])}
        ),
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=asked["rows"],
            num_generations=asked["group"],
            max_completion_length=asked["completion"],
            max_steps=num_steps,
            learning_rate=1e-4,
            beta=0.0,
            loss_type="grpo",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=num_steps,
            disable_tqdm=True,
        ),
        callbacks=[clock],
    )
    trainer.train()
lengths = [
    one["completions/mean_length"]
    for one in trainer.state.log_history
    if "completions/mean_length" in one
]
ends = clock.ends[asked["warm_up"] - 1 :]
times = [after - before for before, after in itertools.pairwise(ends)]
print("RESULT " + json.dumps({"step_s": times, "completion_tokens": lengths[-1]}))
