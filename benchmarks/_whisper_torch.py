"""`whisper_peers.py`: transformers' Whisper of the same sizes, eager or by `torch.compile`."""

import sys
from collections.abc import Callable

import _tiny_worker as worker
import _whisper_worker as own
import torch
from torch.nn import functional
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration


def train_step() -> tuple[Callable[[], float], int]:
    """Return a step that returns its loss, and the number of parameters."""
    torch.manual_seed(0)
    cfg = WhisperConfig(
        vocab_size=own.WORDS,
        num_mel_bins=own.BANDS,
        d_model=own.DIM,
        encoder_layers=own.LAYERS,
        decoder_layers=own.LAYERS,
        encoder_attention_heads=own.HEADS,
        decoder_attention_heads=own.HEADS,
        encoder_ffn_dim=own.HIDDEN,
        decoder_ffn_dim=own.HIDDEN,
        max_source_positions=own.TOKENS,
        max_target_positions=own.LENGTH,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model = WhisperForConditionalGeneration(cfg).train()
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=own.RATE, betas=own.BETAS, weight_decay=own.WEIGHT_DECAY, fused=True
    )
    extractor = WhisperFeatureExtractor(feature_size=own.BANDS, chunk_length=own.SECONDS)
    sounds, tokens = own.batch()
    tokens = torch.from_numpy(tokens).long()
    called = torch.compile(model) if "--compile" in sys.argv else model

    def step() -> float:
        frames = torch.from_numpy(extractor._torch_extract_fbank_features(sounds))
        logits = called(input_features=frames, decoder_input_ids=tokens[:, :-1]).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, own.CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, sum(one.numel() for one in trained)


if __name__ == "__main__":
    torch.set_num_threads(2)
    step, num_params = train_step()
    worker.serve(step, num_params=num_params, packages=("torch", "transformers"))
