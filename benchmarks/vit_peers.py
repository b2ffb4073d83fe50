"""A small ViT's train step against transformers' ViT by PyTorch, eager and by `torch.compile`.

    python benchmarks/vit_peers.py --torch-python VENV/bin/python

One model in all: sizes, pictures, AdamW, clipping, float32, as many threads as there are cores.
Rivals take turns as in `tiny_peers.py`. `pip install torch transformers numpy` for the rivals.
"""

import _vit_worker as own
from _step_peers import main

if __name__ == "__main__":
    main(__doc__, "vit", "transformers", rows=own.PICTURES, unit="pictures")
