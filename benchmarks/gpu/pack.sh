#!/usr/bin/env bash
# Makes benchmarks/gpu/wheels: what a machine with a GPU has to bring from elsewhere where it has
# Python 3.12 with jax for CUDA, numpy and scipy, perhaps torch, and no network.
#
#   benchmarks/gpu/pack.sh                 # with python3.12
#   PYTHON=VENV/bin/python JAX=0.11.2 benchmarks/gpu/pack.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3.12}
wheels=${WHEELS:-benchmarks/gpu/wheels}
most_mib=64

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12) and "pack.sh needs a Python 3.12; set PYTHON")'
rm -rf "$wheels"
mkdir -p "$wheels"
"$python" -m pip --quiet wheel --no-deps --wheel-dir "$wheels" . plugins/axl_attention plugins/axl_gpu
"$python" -m pip --quiet download --only-binary=:all: --find-links "$wheels" --dest "$wheels" \
    "jax==${JAX:-0.11.2}" axcore axl-attention axl-gpu absl-py pytest gguf
for there in jax jaxlib ml_dtypes numpy scipy; do rm -f "$wheels/$there"-*.whl; done
mib=$(du -sm "$wheels" | cut -f1)
echo "$wheels: $(find "$wheels" -name '*.whl' | wc -l) wheels, $mib MiB"
[ "$mib" -le "$most_mib" ] || { echo "that is more than $most_mib MiB" >&2; exit 1; }
