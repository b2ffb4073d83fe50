"""A small Whisper's train step against transformers' by PyTorch, eager and by `torch.compile`.

    python benchmarks/whisper_peers.py --torch-python VENV/bin/python

One model in all: sizes, sounds, texts, AdamW, clipping, float32, as many threads as there are
cores. Log-mel features are made in each step, in axcore within its program, in PyTorch by the
function that transformers' feature extractor calls. Rivals take turns as in `tiny_peers.py`.
`pip install torch transformers numpy` for the rivals.
"""

import _whisper_worker as own
from _step_peers import main

if __name__ == "__main__":
    main(__doc__, "whisper", "transformers", rows=own.SOUNDS, unit="sounds")
