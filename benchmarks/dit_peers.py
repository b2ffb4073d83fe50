"""A small DiT's train step against diffusers' by PyTorch, eager and by `torch.compile`.

    python benchmarks/dit_peers.py --torch-python VENV/bin/python

One model in all: sizes, latents, flow matching, AdamW, clipping, float32, as many threads as there
are cores. Rivals take turns as in `tiny_peers.py`. `pip install torch diffusers transformers numpy`
for the rivals.
"""

import _dit_worker as own
from _step_peers import main

if __name__ == "__main__":
    main(__doc__, "dit", "diffusers", rows=own.PICTURES, unit="pictures")
